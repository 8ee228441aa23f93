"""The bound of pipelines holds of every plan, and the enumeration ends with the best."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.planners.asymmetric import all_plans, best_of_all_s, small_problem
from heterps_agents.asymmetric.exhaustive import (
    best_of_all,
    can_be_exhaustive,
    pipeline_bound,
)
from heterps_agents.asymmetric.judged import Judge, Judged
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import SEEDS, FieldCase, field_problem
from heterps_envs.simulator.simulate import simulated_step_time_s
from tests.uneven_problems import uneven_problem

JOBS: tuple[dict[str, Any], ...] = (
    {"schedule": "1f1b"},
    {"schedule": "gpipe"},
    # The last micro-batch has one sample of three.
    {"schedule": "1f1b", "micro_batch_size": 3, "global_batch_size": 10},
)


def bound_s(problem: Problem, plan: Plan) -> float:
    stages = {stage.name: stage for stage in plan.stages}
    found = []
    for pipeline in plan.pipelines:
        own = [stages[name] for name in pipeline.stages]
        classes = tuple(problem.class_of[stage.devices[0]] for stage in own)
        stops = tuple(stage.last_layer + 1 for stage in own)
        bound = pipeline_bound(problem, classes, stops)
        found.append(bound.least_s(len(pipeline.micro_batches)))
    return max(found)


@pytest.mark.parametrize("job", JOBS)
@pytest.mark.parametrize("bandwidth_bytes_per_s", [1e8, 1e11])
def test_no_plan_is_simulated_below_its_bound(
    job: dict[str, Any], bandwidth_bytes_per_s: float
) -> None:
    problem = small_problem(
        4, (1, 2), memory=5.0, bandwidth_bytes_per_s=bandwidth_bytes_per_s, **job
    )
    near = 0
    for plan in all_plans(problem):
        seconds, bound = simulated_step_time_s(problem, plan), bound_s(problem, plan)
        assert bound <= seconds * (1 + 1e-9)
        near += seconds < 1.1 * bound
    assert near > 0


def test_micro_batches_within_a_time_are_those_that_the_bound_allows() -> None:
    bound = pipeline_bound(small_problem(4, (1, 2)), (0, 1), (2, 4))
    for share in range(1, 12):
        seconds = bound.least_s(share)
        assert bound.most_within(seconds) >= share
        assert bound.most_within(0.999 * seconds) < share


@pytest.mark.slow
@pytest.mark.parametrize("schedule", ["1f1b", "gpipe"])
def test_it_ends_with_the_best_of_all_from_a_poor_plan(schedule: str) -> None:
    problem = small_problem(4, (2, 1), memory=3.0, schedule=schedule, global_batch_size=6)
    worst = max(all_plans(problem), key=lambda plan: simulated_step_time_s(problem, plan))
    known = Judged(simulated_step_time_s(problem, worst), worst)
    judge = Judge(problem, Budget())
    best, is_complete = best_of_all(problem, known, judge)
    assert is_complete
    assert best.cost <= best_of_all_s(problem) * (1 + 1e-9)
    # Bounds spare most of the work.
    assert judge.num_simulated < sum(1 for _ in all_plans(problem))


def test_a_spent_budget_leaves_it_incomplete() -> None:
    problem, budget = small_problem(4, (2, 1), memory=3.0), Budget(evaluations=1)
    plan = next(all_plans(problem))
    known = Judged(simulated_step_time_s(problem, plan), plan)
    budget.spend()
    assert best_of_all(problem, known, Judge(problem, budget)) == (known, False)


def test_it_is_for_few_plain_devices_that_are_alike() -> None:
    assert can_be_exhaustive(small_problem(5, (1, 1, 2)))
    assert not can_be_exhaustive(small_problem(5, (4, 4)))
    assert not can_be_exhaustive(small_problem(30, (1, 1, 2)))
    assert not can_be_exhaustive(small_problem(5, (1, 1), schedule="zero-bubble"))
    assert not can_be_exhaustive(field_problem(FieldCase("home-boxes", 0), SEEDS["development"]))
    small = uneven_problem(counts=(1, 1, 0))
    assert can_be_exhaustive(small)
    open_ = Problem(small.profile, small.cluster, small.job, strategy=Strategy(recompute="auto"))
    assert not can_be_exhaustive(open_)
