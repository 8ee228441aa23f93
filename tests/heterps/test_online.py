"""The controller of online runs: when it re-places, with what, and what a move costs."""

from __future__ import annotations

import pytest

from heterps.online import MOVE_OVERHEAD_S, OnlineController, move_seconds
from heterps.placing import place
from heterps_agents.policy import Policy
from heterps_configs.job import Job
from heterps_configs.library import load_cluster
from heterps_configs.plan import Plan
from heterps_envs.correction import StageMeasurement
from heterps_envs.problem import Problem
from heterps_envs.simulator import estimate, simulate
from tests.heterps.small_profiles import blocks_profile


@pytest.fixture
def problem() -> Problem:
    return Problem(blocks_profile(), load_cluster("local-emulated"), Job(dtype="float32"))


def measured(problem: Problem, plan: Plan, slower: dict[str, float]) -> list[StageMeasurement]:
    """What a run of the plan would measure with some devices slower."""
    found = []
    for stage in plan.stages:
        device = stage.devices[0]
        column = problem.class_of[device]
        layers = slice(stage.first_layer, stage.last_layer + 1)
        factor = slower.get(device, 1.0)
        forward = float(problem.tables.forward_s[layers, column].sum()) * factor
        backward = float(problem.tables.backward_s[layers, column].sum()) * factor
        found.append(
            StageMeasurement(device, stage.first_layer, stage.last_layer, forward, backward)
        )
    return found


def controller(problem: Problem, plan: Plan) -> OnlineController:
    return OnlineController(problem, plan, Policy.load("generalist"), fine_tune_s=0)


def test_nothing_happens_while_the_run_is_as_predicted(problem: Problem) -> None:
    plan = place(problem).plan
    watcher = controller(problem, plan)
    assert watcher.observe(5, 100, measured(problem, plan, {"fast": 1.05})) is None
    assert watcher.decisions == []


def test_a_slow_device_gets_fewer_layers_and_the_prediction_is_what_the_slow_device_gives(
    problem: Problem,
) -> None:
    plan = place(problem).plan
    watcher = controller(problem, plan)
    adapted = watcher.observe(5, 100, measured(problem, plan, {"fast": 3.0}))
    assert adapted is not None
    decision = watcher.decisions[0]
    assert decision.adopted
    assert decision.drift["fast"] == pytest.approx(3.0)
    stale_s = simulate(problem, plan, slowdown={"fast": 3.0}).step_time_s
    assert decision.candidates["stale"] == pytest.approx(stale_s, rel=0.02)
    adapted_s = estimate(watcher.problem, adapted).step_time_s
    assert adapted_s == pytest.approx(stale_s - decision.gain_s, rel=0.02)
    assert adapted_s < stale_s / 1.3


def test_a_new_plan_is_not_adopted_when_too_few_steps_remain_to_pay_for_the_move(
    problem: Problem,
) -> None:
    plan = place(problem).plan
    watcher = controller(problem, plan)
    assert watcher.observe(99, 0, measured(problem, plan, {"fast": 3.0})) is None
    assert watcher.decisions[0].adopted is False


def test_the_second_look_at_the_same_drift_changes_nothing(problem: Problem) -> None:
    plan = place(problem).plan
    watcher = controller(problem, plan)
    adapted = watcher.observe(5, 100, measured(problem, plan, {"fast": 3.0}))
    assert adapted is not None
    again = measured(watcher.problem, adapted, {})
    assert watcher.observe(10, 95, again) is None
    assert len(watcher.decisions) == 1


def test_layers_that_stay_cost_nothing_to_move(problem: Problem) -> None:
    plan = place(problem, "even").plan
    assert move_seconds(problem, plan, plan) == MOVE_OVERHEAD_S
    other = place(problem, "exact").plan
    assert move_seconds(problem, plan, other) > MOVE_OVERHEAD_S
