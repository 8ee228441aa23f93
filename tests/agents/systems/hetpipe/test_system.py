"""HetPipe on our problems: pipelines side by side, by the policy that it predicts most of."""

from __future__ import annotations

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.hetpipe.allocation import allocations
from heterps_agents.systems.hetpipe.system import HetPipe
from heterps_agents.systems.hetpipe.workers import Partitions
from heterps_configs.errors import InfeasibleError
from tests.uneven_problems import MakeProblem


def test_it_takes_the_allocation_of_which_it_predicts_most(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(2, 4, 2), global_batch_size=64)
    plan, own_cost = HetPipe().answer(problem, Budget())
    # As a system sees the problem.
    partitions = Partitions(problem.plain.by_node)
    found = [partitions.best(allocation) for allocation in allocations(problem.plain.by_node)]
    candidates = [each for each in found if each is not None]
    assert len({each.policy for each in candidates}) > 1
    best = min(candidates, key=lambda each: each.seconds)
    assert own_cost is not None
    assert own_cost.seconds == best.seconds
    workers = {
        tuple(plan.stage(name).devices[0] for name in pipeline.stages): len(pipeline.micro_batches)
        for pipeline in plan.pipelines
    }
    assert workers == {w.devices: w.micro_batches for w in best.workers if w.micro_batches}


def test_pipelines_share_no_stage_and_every_device_has_layers(make_problem: MakeProblem) -> None:
    plan = HetPipe().plan(make_problem(counts=(2, 4, 2), global_batch_size=64), Budget())
    names = [name for pipeline in plan.pipelines for name in pipeline.stages]
    assert len(names) == len(set(names))
    assert len(plan.devices) == len(names) == 8


def test_a_plan_holds_no_more_in_flight_than_was_counted(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=0.42, counts=(2, 2, 0), global_batch_size=64)
    plan, _ = HetPipe().answer(problem, Budget())
    chosen = [stage.in_flight for stage in plan.stages]
    assert any(count is not None for count in chosen)
    roomy, _ = HetPipe().answer(
        make_problem(counts=(2, 2, 0), memory=9.0, global_batch_size=64), Budget()
    )
    assert plan.predicted_step_time_s is not None
    assert roomy.predicted_step_time_s is not None
    assert plan.predicted_step_time_s > roomy.predicted_step_time_s


def test_a_note_says_that_plans_are_synchronous(make_problem: MakeProblem) -> None:
    plan, own_cost = HetPipe().answer(
        make_problem(counts=(2, 4, 2), global_batch_size=64), Budget()
    )
    assert own_cost is not None
    largest = max(len(pipeline.micro_batches) for pipeline in plan.pipelines)
    assert f"up to {2 * largest - 2} updates of another" in own_cost.note


@pytest.mark.parametrize("schedule", ["gpipe", "interleaved", "zero-bubble"])
def test_other_schedules_hold_what_they_hold(make_problem: MakeProblem, schedule: str) -> None:
    plan, _ = HetPipe().answer(make_problem(schedule=schedule), Budget())
    assert all(stage.in_flight is None for stage in plan.stages)


def test_a_model_that_is_too_large_for_every_worker_is_refused(make_problem: MakeProblem) -> None:
    with pytest.raises(InfeasibleError, match=r"^hetpipe: by no policy"):
        HetPipe().plan(make_problem(memory=0.05), Budget())
