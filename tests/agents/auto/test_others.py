"""What `auto` makes of the answers of other planners."""

from __future__ import annotations

import pytest

from heterps.micro_batches.sizes import with_size
from heterps.planning.problems import load_problem
from heterps.planning.strategies import OPEN
from heterps_agents.auto import others
from heterps_agents.auto.choices import better, finished
from heterps_agents.auto.others import (
    COPIES,
    EVEN,
    FINISHING_GAIN,
    MOST_NEAR_DEVICES,
    NEAR,
    WALKS,
    finders,
    plan_of_finds,
    quick_plan,
    quick_ways,
    slower_plan,
)
from heterps_agents.interface import patient
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_agents.search.uniform import best_uniform
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import SEEDS, FieldCase, field_problem
from heterps_envs.simulator.simulate import is_feasible, simulated_step_time_s


@pytest.fixture(scope="module")
def problem() -> Problem:
    return load_problem(
        "gpt2", "a100-v100", global_batch_size=16, strategy=OPEN.changed(chooses_micro_batch=False)
    )


def test_a_quick_plan_is_that_of_the_planner_that_was_asked(problem: Problem) -> None:
    for way in set(quick_ways(problem)) - {NEAR, COPIES, WALKS}:
        found = quick_plan(problem, Budget(), 0, way)
        if found is not None:
            own = planner_named(way).plan(problem, Budget())
            assert is_feasible(problem, found)
            least_s = simulated_step_time_s(problem, own)
            assert simulated_step_time_s(problem, found) <= least_s * (1 + 1e-9)


@pytest.mark.parametrize(("number", "is_asked"), [(5, True), (8, True), (9, False)])
def test_harp_is_quick_enough_for_some_more_devices(number: int, *, is_asked: bool) -> None:
    asked = field_problem(FieldCase("volunteers", number), SEEDS["development"])
    assert ("harp" in quick_ways(asked)) == is_asked


def test_behind_slow_links_devices_of_one_node_are_asked_for_alone() -> None:
    problem = with_size(field_problem(FieldCase("home-boxes", 9), SEEDS["development"]), 8)
    near, even = (quick_plan(problem, Budget(), 0, way) for way in (NEAR, EVEN))
    assert near is not None
    assert even is not None
    assert len(near.devices) <= MOST_NEAR_DEVICES
    assert len({problem.device_named[name].node for name in near.devices}) == 1
    assert near.bound == Bound(), "no bound of a part is one of all"
    assert simulated_step_time_s(problem, near) < 0.7 * simulated_step_time_s(problem, even)


def test_even_plans_are_looked_for_below_what_is_known(problem: Problem) -> None:
    even = best_uniform(problem, Budget())
    assert even is not None
    budget = Budget()
    budget.known_cost = even.cost / FINISHING_GAIN
    assert quick_plan(problem, budget, 0, EVEN) is None


def test_quick_plans_of_few_devices_are_finished_before_they_are_compared() -> None:
    asked = field_problem(FieldCase("home-boxes", 7), SEEDS["development"])
    sized = [with_size(asked, size) for size in (2, 4)]
    for problem in sized:
        even = best_uniform(problem, Budget())
        found = quick_plan(problem, Budget(), 0, EVEN)
        assert even is not None
        assert found is not None
        seconds = simulated_step_time_s(problem, finished(problem, even.plan, Budget()))
        assert simulated_step_time_s(problem, found) <= seconds * (1 + 1e-9)


def test_a_planner_that_refuses_or_fails_has_no_quick_plan(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing:
        name = "refusing"

        def plan(self, problem: Problem, budget: Budget) -> Plan:
            raise HeterpsError("needs something else")

    monkeypatch.setattr(others, "planner_named", lambda name, seed: Refusing())
    assert quick_plan(problem, Budget(), 0, "refusing") is None


def test_of_what_a_planner_finds_on_its_way_the_faster_plan_counts(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    fast, slow = (planner_named(name).plan(problem.plain, Budget()) for name in ("exact", "even"))

    class Preferring:
        name = "preferring"

        def plan(self, problem: Problem, budget: Budget) -> Plan:
            budget.found(2.0, lambda: fast, "one view")
            budget.found(1.0, lambda: slow, "another view")
            return slow

    monkeypatch.setattr(others, "planner_named", lambda name, seed: Preferring())
    found = quick_plan(problem, Budget(), 0, "preferring")
    assert found is not None
    assert [stage.layers for stage in found.stages] == [stage.layers for stage in fast.stages]


def test_tangram_says_what_it_finds_in_each_view() -> None:
    asked = field_problem(FieldCase("three-type-racks", 6), SEEDS["development"])
    problem, budget = with_size(asked, 1), Budget()
    plan = planner_named("tangram").plan(problem, budget)
    assert len(budget.finds) > 1
    assert len({find.view for find in budget.finds}) == len(budget.finds)
    least = min(budget.finds, key=lambda find: find.cost)
    assert least.plan is not None
    assert least.plan().stages == plan.stages


def test_of_many_devices_and_kinds_fewer_are_asked() -> None:
    few = load_problem("gpt2", "a100-v100", global_batch_size=16, strategy=OPEN)
    many = load_problem("llama-7b", "eight-types", global_batch_size=64, strategy=OPEN)
    assert set(quick_ways(many)) < set(quick_ways(few))


def test_plans_that_the_strategy_forbids_are_no_answers(problem: Problem) -> None:
    even = best_uniform(problem, Budget())
    assert even is not None
    stage = even.plan.stages[0]
    again = stage.changed(recompute_layers=tuple(stage.layers))
    other = even.plan.changed(stages=(again, *even.plan.stages[1:]))
    assert better(problem.plain, even.plan, other) is even.plan
    assert better(problem.plain, None, other) is None


def test_nobody_is_asked_once_the_budget_is_spent(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr(others, "planner_named", lambda name, seed: asked.append(name))
    budget = Budget(evaluations=1)
    budget.spend()
    slower_plan(problem, budget, 0)
    assert not asked


def test_finds_of_another_planner_are_as_good_as_its_answer(problem: Problem) -> None:
    plain = problem.plain
    found = plan_of_finds(plain, Budget(), 0, "annealing")
    own = planner_named("annealing").plan(plain, Budget(10_000))
    assert found is not None
    assert simulated_step_time_s(plain, found) <= simulated_step_time_s(plain, own) * (1 + 1e-9)


def test_nobody_looks_for_finds_without_time_or_for_many_devices(
    problem: Problem, monkeypatch: pytest.MonkeyPatch
) -> None:
    budget = Budget(evaluations=1)
    budget.spend()
    assert plan_of_finds(problem, budget, 0, "annealing") is None
    assert finders(problem)
    monkeypatch.setattr(others, "FINDERS_DEVICES", len(problem.cluster.devices) - 1)
    assert not finders(problem)
    monkeypatch.setattr(patient, "MANY_DEVICES", len(problem.cluster.devices))
    assert not finders(problem), "with options open the policy is asked anyway"
    assert finders(problem.plain) == ("ppo",)
    plan = plan_of_finds(problem.plain, Budget(), 0, "ppo")
    own = planner_named("ppo").plan(problem.plain, Budget())
    assert plan is not None
    assert simulated_step_time_s(problem, plan) <= simulated_step_time_s(problem, own) * (1 + 1e-9)
