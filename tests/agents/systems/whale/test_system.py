"""Whale on our problems: replicas with shares of the batch, else a pipeline by memory."""

from __future__ import annotations

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.whale.system import Whale
from heterps_configs.errors import InfeasibleError
from tests.uneven_problems import MakeProblem


def test_replicas_get_micro_batches_in_proportion_to_their_speed(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=40.0, global_batch_size=64)
    plan, own_cost = Whale().answer(problem, Budget())
    assert all(stage.first_layer == 0 for stage in plan.stages)
    shares = {
        plan.stage(pipeline.stages[0]).devices[0]: len(pipeline.micro_batches)
        for pipeline in plan.pipelines
    }
    assert sum(shares.values()) == problem.job.num_micro_batches
    seconds = {
        name: float(problem.tables.compute_s[:, problem.class_of[name]].sum()) for name in shares
    }
    for name, share in shares.items():
        exact = 64 / seconds[name] / sum(1 / each for each in seconds.values())
        assert abs(share - exact) < 1 + 1e-6
    assert own_cost is not None
    assert own_cost.seconds == pytest.approx(max(shares[n] * seconds[n] for n in shares))


def test_without_room_for_the_whole_model_it_is_a_pipeline_with_the_largest_memory_in_front(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(memory=1.0)
    plan, own_cost = Whale().answer(problem, Budget())
    assert len(plan.stages) > 1
    assert len(plan.pipelines) == 1
    memory = [problem.device_named[stage.devices[0]].memory_bytes for stage in plan.stages]
    assert memory == sorted(memory, reverse=True)
    assert own_cost is not None


def test_a_model_that_is_too_large_is_refused(make_problem: MakeProblem) -> None:
    with pytest.raises(InfeasibleError, match=r"^whale: the devices have no room"):
        Whale().plan(make_problem(memory=0.1), Budget())
