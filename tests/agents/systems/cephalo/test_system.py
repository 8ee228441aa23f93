"""Cephalo on our problems: the whole model on devices with room, uneven micro-batches, a note."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.cephalo.problem import case_of, most_counts
from heterps_agents.systems.cephalo.system import Cephalo
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from tests.uneven_problems import MakeProblem


def micro_batches(problem: Problem) -> dict[str, int]:
    """Of each device that has some, by Cephalo's plan."""
    plan = Cephalo().plan(problem, Budget())
    last = problem.profile.num_layers - 1
    assert all((stage.first_layer, stage.last_layer) == (0, last) for stage in plan.stages)
    assert all(stage.recompute_layers == tuple(range(last + 1)) for stage in plan.stages)
    assert plan.sharded_layers == frozenset(range(last + 1))
    return {
        plan.stage(pipeline.stages[0]).devices[0]: len(pipeline.micro_batches)
        for pipeline in plan.pipelines
    }


def test_faster_devices_get_more_micro_batches_and_no_other_shares_are_quicker(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(memory=40.0, global_batch_size=40, bandwidth_bytes_per_s=1e14)
    found = micro_batches(problem)
    assert sum(found.values()) == 40
    tables = problem.tables
    # Activations are computed again.
    seconds = {
        name: float((2 * tables.forward_s + tables.backward_s)[:, kind].sum())
        for name, kind in problem.class_of.items()
    }
    longest = max(found[name] * seconds[name] for name in found)
    # One micro-batch less of the longest would make another one as long.
    for name in seconds:
        assert (found.get(name, 0) + 1) * seconds[name] >= longest * (1 - 1e-9)


def test_its_own_lines_are_the_profiles_seconds_at_the_size_of_the_job(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(micro_batch_size=4)
    case = case_of(problem)
    for times, kind in zip(case.times, problem.class_of.values(), strict=True):
        for line, column in zip(
            times, (problem.tables.forward_s, problem.tables.backward_s), strict=True
        ):
            assert line.slope_s * 4 + line.start_s == pytest.approx(column[:, kind])
            assert np.all(line.slope_s > 0)


def test_devices_without_room_for_weights_and_gradients_get_none(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(memory=1.5, global_batch_size=32)
    room = dict(
        zip(problem.device_named, most_counts(problem, list(problem.device_named)), strict=True)
    )
    assert 0 in room.values()
    found = micro_batches(problem)
    assert found
    assert all(room[name] > 0 for name in found)


def test_a_note_says_what_of_its_answer_no_plan_says(make_problem: MakeProblem) -> None:
    _, own_cost = Cephalo().answer(make_problem(memory=40.0), Budget())
    assert own_cost is not None
    assert "Cephalo shards weights and gradients, too, 0.143 of all state" in own_cost.note
    assert "\n" not in own_cost.note


def test_a_model_that_no_device_holds_is_refused(make_problem: MakeProblem) -> None:
    with pytest.raises(InfeasibleError, match=r"^cephalo: no device has room for all weights"):
        Cephalo().plan(make_problem(memory=0.5), Budget())


def test_under_gpipe_memory_limits_the_micro_batches_of_a_device(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(memory=1.8, global_batch_size=64, schedule="gpipe")
    names = list(problem.device_named)
    room = dict(zip(names, most_counts(problem, names), strict=True))
    found = micro_batches(problem)
    # With more memory they take more.
    assert found["small-0"] == room["small-0"] == 2
    roomy = make_problem(memory=3.0, global_batch_size=64, schedule="gpipe")
    assert micro_batches(roomy)["small-0"] > 2


def test_what_it_predicts_of_a_plan_is_over_the_plans_devices(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=1.5, global_batch_size=32, bandwidth_bytes_per_s=1e9)
    found = micro_batches(problem)
    _, own_cost = Cephalo().answer(problem, Budget())
    tables, count = problem.tables, len(found)
    assert count < len(problem.device_named)
    # Weights are gathered once, gradients scattered once, over the slowest link of the ring.
    ring_s = (count - 1) * (1e-5 + tables.gradient_bytes / count / 2.5e8)
    longest = 0.0
    for name, number in found.items():
        kind = problem.class_of[name]
        forward, backward = tables.forward_s[:, kind], tables.backward_s[:, kind]
        first = np.maximum(ring_s, number * forward)
        second = np.maximum(ring_s, number * (forward + backward))
        longest = max(longest, float((first + second).sum()))
    assert own_cost is not None
    assert own_cost.seconds == pytest.approx(longest)
