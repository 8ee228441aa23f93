"""Short annealings from a finished plan: never worse, and on the ways that its stages have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_agents.finishing.near_plan import best_near, ways_of
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.registry import planner_named
from heterps_agents.search.greedy import greedy_code
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.options import keeps_to
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import FieldCase, field_problem
from heterps_envs.simulator.simulate import feasible_step_time_s, simulated_step_time_s


@pytest.mark.parametrize("name", ["even", "greedy", "speed-proportional"])
def test_what_is_found_near_a_plan_is_faster_and_fits(name: str) -> None:
    profile = load_profile("gpt2")
    problem = Problem(profile, load_cluster("a100-v100-t4"), Job(dtype=profile.dtype))
    plan, budget = planner_named(name).plan(problem, Budget()), Budget()
    found, step_time_s = best_near(problem, plan, budget)
    assert step_time_s == feasible_step_time_s(problem, found)
    assert feasible_step_time_s(problem, found) <= feasible_step_time_s(problem, plan)
    if name == "even":
        assert feasible_step_time_s(problem, found) < feasible_step_time_s(problem, plan) / 2
    assert budget.evaluations_used > 0
    assert found.planner == plan.planner


def test_groups_that_compute_again_stay_such_groups() -> None:
    profile = load_profile("gpt2")
    problem = Problem(
        profile,
        load_cluster("h100-pod"),
        Job(dtype=profile.dtype, global_batch_size=32, micro_batch_size=4),
        strategy=Strategy(tensor_parallel=(2,), recompute="full"),
    )
    plan = planner_named("greedy").plan(problem, Budget())
    assert ways_of(plan, problem.strategy) == problem.strategy
    found, _ = best_near(problem, plan, Budget())
    assert keeps_to(found, problem.strategy)
    assert feasible_step_time_s(problem, found) <= feasible_step_time_s(problem, plan)


def test_groups_that_a_view_cannot_have_are_looked_for_in_the_others() -> None:
    """Classes of a view may have nodes with one device beside others with several."""
    problem = field_problem(FieldCase("spot-regions", 8), 41)
    pairs = replace(problem, strategy=Strategy(tensor_parallel=(2,)))
    view = pairs.by_each_node
    assert view is not None
    with pytest.raises(HeterpsError, match="no node"):
        Question.of(pairs.views[-1], Budget())
    question = Question.of(view, Budget())
    code = greedy_code(question)
    assert code is not None
    plan = question.plan_of(code)
    assert {stage.degree for stage in plan.stages} == {2}
    assert best_near(problem, plan, Budget()) == (plan, simulated_step_time_s(problem, plan))
