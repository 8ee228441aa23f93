"""`auto` with a limit in time: all of it is used, and no plan is worse for it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps.micro_batches.sizes import with_size
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.planning.strategies import OPEN
from heterps_agents.asymmetric.planner import AsymmetricPlanner
from heterps_agents.auto.going_on import GoingOn
from heterps_agents.auto.planner import AutoPlanner
from heterps_agents.interface.patient import PatientPlanner
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_agents.learned.planner import PolicyPlanner
from heterps_agents.search.uniform import best_uniform
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.placement import placement_of
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import SEEDS, FieldCase, field_problem
from heterps_envs.simulator.simulate import is_feasible, simulated_step_time_s

ALL = OPEN.changed(chooses_micro_batch=False)


def test_auto_is_a_planner_that_can_be_patient() -> None:
    planner = planner_named("auto")
    assert isinstance(planner, PatientPlanner)
    assert planner.is_patient


@pytest.mark.parametrize(("number", "kind"), [(3, AsymmetricPlanner), (6, PolicyPlanner)])
def test_only_of_few_devices_nothing_is_left_out(number: int, kind: type) -> None:
    problem = field_problem(FieldCase("two-type-racks", number), SEEDS["development"])
    hurried = AutoPlanner(effort="fast").hurried(problem)
    assert isinstance(hurried, kind)
    assert hurried.name == "auto"


def test_who_leaves_out_lanes_is_not_asked_for_them_in_a_hurry() -> None:
    planner = AutoPlanner()
    planner.chains_only = True
    problem = load_problem("gpt2", "a100-v100", global_batch_size=16, strategy=ALL)
    hurried = planner.hurried(problem)
    assert isinstance(hurried, AutoPlanner)
    assert hurried.chains_only
    assert not hurried.is_patient


def test_walks_over_far_devices_are_for_who_leaves_out_lanes_too() -> None:
    """Of single devices they make chains: without a limit in time, and with one."""
    problem = with_size(field_problem(FieldCase("volunteers", 2), 2210), 1)
    all_plans, chains = AutoPlanner(effort="fast"), AutoPlanner(effort="fast")
    chains.chains_only = True
    found = chains.plan(problem, Budget())
    assert placement_of(problem, found) is not None
    least_s = simulated_step_time_s(problem, all_plans.plan(problem, Budget()))
    assert simulated_step_time_s(problem, found) <= least_s * (1 + 1e-9)
    even = planner_named("even").plan(problem, Budget())
    ways = GoingOn("auto", 0, "fast", chains_only=True)
    later = ways.improved(problem, even, Budget(cpu_seconds=0.3))
    assert placement_of(problem, later) is not None
    assert simulated_step_time_s(problem, later) < simulated_step_time_s(problem, even)


@pytest.mark.slow
def test_going_on_from_a_poor_plan_finds_a_better_one() -> None:
    problem = load_problem("gpt2", "a100-v100", global_batch_size=16, strategy=ALL)
    poor = planner_named("even").plan(problem.plain, Budget())
    budget = Budget(cpu_seconds=1)
    found = GoingOn("auto", 0, "normal", chains_only=False).improved(problem, poor, budget)
    assert budget.is_exhausted
    assert is_feasible(problem, found)
    assert simulated_step_time_s(problem, found) < simulated_step_time_s(problem, poor)
    assert found.planner == "auto"
    assert found.predicted_step_time_s is not None


def test_near_a_poor_plan_there_is_a_better_one_that_is_found_at_once() -> None:
    problem = load_problem("gpt2", "a100-v100-t4", global_batch_size=16).plain
    plan = planner_named("even").plan(problem, Budget())
    budget = Budget(cpu_seconds=5)
    found = AutoPlanner().nearby(problem, plan, budget)
    assert is_feasible(problem, found)
    assert simulated_step_time_s(problem, found) < simulated_step_time_s(problem, plan)
    price = replace(problem, job=problem.job.changed(objective="price"))
    assert AutoPlanner().nearby(price, plan, budget) is plan


def test_going_on_without_any_time_returns_what_it_was_given() -> None:
    problem = load_problem("gpt2", "a100-v100", global_batch_size=16, strategy=ALL)
    even = best_uniform(problem, Budget())
    assert even is not None
    budget = Budget(cpu_seconds=1e-9)
    found = GoingOn("auto", 0, "normal", chains_only=False).improved(problem, even.plan, budget)
    assert found.stages == even.plan.stages


@pytest.mark.slow
def test_with_a_limit_in_time_no_quick_planner_is_ahead() -> None:
    problem = load_problem("gpt2", "a100-v100-t4", global_batch_size=32, strategy=OPEN)
    found = place(problem, "auto", budget=Budget(cpu_seconds=2)).estimate.step_time_s
    for name in ("uniform-3d", "tangram", "whale"):
        other = place(problem, name, budget=Budget(cpu_seconds=2)).estimate.step_time_s
        assert found <= other * (1 + 1e-9), name


@pytest.mark.slow
def test_what_fits_nowhere_is_said_with_a_limit_in_time_too() -> None:
    problem = load_problem("llama-70b", "a100-v100", global_batch_size=16)
    with pytest.raises(InfeasibleError, match="auto: "):
        AutoPlanner().plan(problem, Budget(cpu_seconds=1))


def test_the_price_is_minimised_within_a_limit_in_time() -> None:
    problem = load_problem("gpt2", "a100-v100", global_batch_size=16, objective="price")
    cheap = place(problem, "auto", budget=Budget(cpu_seconds=1))
    usual: Problem = problem
    least = place(usual, "greedy").estimate.price_usd_per_million_samples
    assert cheap.estimate.price_usd_per_million_samples <= least * 1.005
