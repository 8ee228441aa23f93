"""Walks on the simulator: never a worse plan, and a better one behind slow links."""

from __future__ import annotations

import pytest

from heterps.planning.problems import load_problem
from heterps.planning.strategies import OPEN
from heterps_agents.auto.walks import walked
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import SEEDS, FieldCase, field_problem
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.simulate import is_feasible, simulated_step_time_s


@pytest.fixture(scope="module")
def problem() -> Problem:
    strategy = OPEN.changed(chooses_micro_batch=False)
    return load_problem("gpt2", "a100-v100", global_batch_size=16, strategy=strategy)


@pytest.mark.slow
@pytest.mark.parametrize("seed", [0, 1])
def test_a_walk_ends_at_a_plan_that_fits_and_is_no_worse(problem: Problem, seed: int) -> None:
    plan = planner_named("even").plan(problem.plain, Budget())
    budget = Budget(cpu_seconds=1)
    found = walked(problem, plan, budget, seed)
    assert is_feasible(problem, found)
    assert can_run(problem, found)
    assert simulated_step_time_s(problem, found) < simulated_step_time_s(problem, plan)


@pytest.mark.slow
def test_behind_slow_links_a_walk_finds_what_the_closed_form_does_not_like() -> None:
    asked = field_problem(FieldCase("home-boxes", 7), SEEDS["development"])
    job = asked.job.changed(micro_batch_size=2)
    strategy = asked.strategy.changed(chooses_micro_batch=False)
    problem = Problem(asked.profile, asked.cluster, job, strategy=strategy)
    plan = planner_named("ppo").plan(problem, Budget())
    found = [walked(problem, plan, Budget(cpu_seconds=2), seed) for seed in (0, 2)]
    least_s = min(simulated_step_time_s(problem, each) for each in found)
    assert least_s < 0.95 * simulated_step_time_s(problem, plan)


def test_without_a_limit_in_time_a_walk_is_short_and_the_same_each_time(problem: Problem) -> None:
    plan = planner_named("even").plan(problem.plain, Budget())
    budgets = Budget(), Budget()
    one, two = (walked(problem, plan, budget, 0) for budget in budgets)
    assert one == two
    assert simulated_step_time_s(problem, one) < simulated_step_time_s(problem, plan)
    assert 20 < budgets[0].evaluations_used == budgets[1].evaluations_used < 2000


def test_without_time_for_some_simulations_none_is_made(problem: Problem) -> None:
    plan = planner_named("even").plan(problem.plain, Budget())
    budget = Budget(cpu_seconds=1e-9)
    assert walked(problem, plan, budget, 0) is plan
    assert budget.evaluations_used == 0


def test_for_the_price_nothing_is_walked() -> None:
    problem = load_problem("gpt2", "a100-v100", global_batch_size=16, objective="price")
    plan = planner_named("greedy").plan(problem, Budget())
    assert walked(problem, plan, Budget(cpu_seconds=5), 0) is plan
