"""What auto is handed: plans that are better, that fit, and that a run can take."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.planners.asymmetric import best_chain, small_problem
from heterps_agents.asymmetric.candidates import NEAR, QUICK, THOROUGH, candidates
from heterps_agents.auto.planner import AutoPlanner
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate


@pytest.fixture(scope="module")
def unlike() -> Problem:
    """Three devices of unlike speed, and far more work than there are bytes to sum."""
    return small_problem(5, (1, 1, 2), seed=4, bandwidth_bytes_per_s=1e11, memory=3.0)


@pytest.fixture(scope="module")
def chain(unlike: Problem) -> Plan:
    return best_chain(unlike)


@pytest.mark.parametrize("trial", [QUICK, THOROUGH])
def test_candidates_are_better_fit_and_say_what_they_take(
    unlike: Problem, chain: Plan, trial: object
) -> None:
    budget = Budget()
    found = candidates(unlike, budget, chain, seed=5, trial=trial)  # type: ignore[arg-type]
    steps = [plan.predicted_step_time_s for plan in found]
    assert steps == sorted(steps, key=float)  # type: ignore[arg-type]
    assert steps[0] is not None
    assert chain.predicted_step_time_s is not None
    assert steps[0] < chain.predicted_step_time_s
    assert budget.evaluations_used > 0
    for plan in found:
        shown = estimate(unlike, plan)
        assert shown.feasible
        assert shown.step_time_s == plan.predicted_step_time_s
        assert plan.seed == 5
    assert found == candidates(unlike, Budget(), chain, seed=5, trial=trial)  # type: ignore[arg-type]


def test_near_a_plan_there_are_more_than_below_it(unlike: Problem, chain: Plan) -> None:
    assert chain.predicted_step_time_s is not None
    below = candidates(unlike, Budget(), chain)
    most_s = NEAR * chain.predicted_step_time_s
    near = candidates(unlike, Budget(), chain, near=NEAR)
    assert near[: len(below)] == below
    assert all(each.predicted_step_time_s < most_s for each in near)  # type: ignore[operator]
    # What takes too long, nobody asked for.
    assert candidates(unlike, Budget(), chain, near=0.0) == []


def test_auto_answers_with_lanes_where_they_are_faster(unlike: Problem, chain: Plan) -> None:
    plan = AutoPlanner().plan(unlike, Budget())
    assert plan.predicted_step_time_s is not None
    assert chain.predicted_step_time_s is not None
    assert plan.predicted_step_time_s < chain.predicted_step_time_s
    # No closed form, so no gap by it.
    assert plan.bound == Bound()


def test_nothing_comes_of_a_job_for_the_price_or_of_interleaved_chunks(unlike: Problem) -> None:
    jobs: tuple[dict[str, Any], ...] = ({"objective": "price"}, {"schedule": "interleaved"})
    for changed in jobs:
        problem = small_problem(5, (1, 1, 2), seed=4, memory=3.0, **changed)
        chain = best_chain(problem)
        assert candidates(problem, Budget(), chain) == []


def test_a_spent_budget_gives_nothing(unlike: Problem, chain: Plan) -> None:
    budget = Budget(evaluations=1)
    budget.spend()
    assert candidates(unlike, budget, chain) == []


def test_one_device_has_nothing_side_by_side() -> None:
    problem = small_problem(4, (1,), memory=3.0)
    assert candidates(problem, Budget(), best_chain(problem)) == []
