"""The choice among plans of recovery by predicted time to finish."""

from __future__ import annotations

import pytest

from heterps_agents.recovery.model import Situation, best_of, describe, predict
from heterps_agents.recovery.plans import FULL, UNCHANGED, recovery_predictions
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import NotEnoughDevicesError
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.online.state_moves import move_s, moved_bytes, state_moves
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from tests.agents.recovery.test_rules import plan_of
from tests.uneven_problems import MakeProblem


def situation(
    problem: Problem, plan: Plan, *lost: str, step: int = 10, num_steps: int = 100, **more: int
) -> Situation:
    left = without_devices(problem, lost)
    return Situation(problem, left, plan, lost, step=step, num_steps=num_steps, **more)


def test_the_time_to_finish_is_planning_state_repeated_and_remaining_steps(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem()
    plan = plan_of(problem, [(0, "fast-0"), (5, "middle-0")])
    after = plan_of(problem, [(0, "fast-0"), (4, "middle-1")])
    now = situation(problem, plan, "middle-0", checkpoint_step=7)
    found = predict(now, "by hand", after)
    step_s = estimate(now.left, after).step_time_s
    # Nobody else had the layers 5..9: three steps are repeated.
    assert now.missing_layers == (5, 6, 7, 8, 9)
    assert found.repeated_s == pytest.approx(3 * step_s)
    assert found.remaining_s == pytest.approx(90 * step_s)
    moves = state_moves(problem, plan, after, ["middle-0"])
    assert found.moved_bytes == moved_bytes(moves)
    assert found.state_s == pytest.approx(move_s(problem, moves, storage_bytes_per_s=1e9))
    assert found.finish_s == pytest.approx(93 * step_s + found.state_s)


def test_nothing_is_repeated_while_every_layer_has_a_live_replica(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem()
    plan = plan_of(problem, [(0, "fast-0|fast-1"), (5, "middle-0|middle-1")])
    now = situation(problem, plan, "fast-1", "middle-0")
    assert now.missing_layers == ()
    assert (
        predict(now, "by hand", plan_of(problem, [(0, "fast-0"), (5, "middle-1")])).repeated_s == 0
    )


def test_many_remaining_steps_pay_for_a_better_plan_and_few_do_not(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(bandwidth_bytes_per_s=1e8)
    plan = plan_of(problem, [(0, "fast-0"), (5, "middle-0|middle-1")])
    few = recovery_predictions(situation(problem, plan, "middle-1", step=99), None)
    many = recovery_predictions(situation(problem, plan, "middle-1", num_steps=10_000), None)
    assert best_of(few).rule == "simple"
    assert best_of(few).moved_bytes == 0
    assert best_of(many).step_s < best_of(few).step_s
    assert all(best_of(many).finish_s <= each.finish_s for each in many)


def test_planning_anew_is_not_tried_where_it_cannot_win_its_time_back(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem()
    plan = plan_of(problem, [(0, "fast-0|fast-1"), (3, "small-0|small-1")])
    at_the_end = recovery_predictions(situation(problem, plan, "small-1", step=100))
    assert FULL not in {each.rule for each in at_the_end}
    assert FULL in {
        each.rule for each in recovery_predictions(situation(problem, plan, "small-1"), None)
    }


def test_a_device_that_came_back_is_used_only_if_that_pays(make_problem: MakeProblem) -> None:
    problem = make_problem(bandwidth_bytes_per_s=1e8)
    plan = plan_of(problem, [(0, "middle-0"), (5, "middle-1")])
    soon = recovery_predictions(situation(problem, plan, step=99))
    assert best_of(soon).rule == UNCHANGED
    later = recovery_predictions(situation(problem, plan, num_steps=1000), None)
    assert best_of(later).rule == FULL
    assert "fast-0" in best_of(later).plan.devices


def test_the_line_for_people_has_every_plan_the_best_first(make_problem: MakeProblem) -> None:
    problem = make_problem()
    plan = plan_of(problem, [(0, "fast-0|fast-1"), (3, "small-0|small-1")])
    found = recovery_predictions(situation(problem, plan, "small-1"), None)
    text = describe(found)
    assert text.startswith(best_of(found).rule)
    assert all(f"{each.rule} " in text for each in found)


def test_too_little_memory_ends_the_run_with_the_bytes_that_are_missing(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(counts=(1, 1, 0), memory=0.5)
    plan = plan_of(problem, [(0, "fast"), (9, "middle")])
    with pytest.raises(NotEnoughDevicesError, match=r"without fast: .* [KMG]iB"):
        recovery_predictions(situation(problem, plan, "fast"))
