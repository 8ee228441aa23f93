"""What a search found on its way is simulated, and the best of it goes on by small moves."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_agents.finishing.finds import MOST_FINDS, best_of_finds, finds_of
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.plan import Plan
from heterps_envs.certificates.plan import check_certificate
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate, simulated_step_time_s


@pytest.fixture(scope="module")
def asked() -> Problem:
    return load_problem("vit-large", "a100-v100-t4", micro_batch_size=1).plain


def _searched(problem: Problem, name: str) -> tuple[Plan, Budget]:
    budget = Budget(evaluations=500)
    return planner_named(name).plan(problem, budget), budget


@pytest.mark.parametrize("name", ["genetic", "random", "annealing"])
def test_the_choice_is_never_slower_as_simulated_and_fits(asked: Problem, name: str) -> None:
    plan, budget = _searched(asked, name)
    chosen = best_of_finds(asked, plan, budget)
    assert simulated_step_time_s(asked, chosen) <= simulated_step_time_s(asked, plan)
    assert estimate(asked, chosen).feasible
    assert chosen.planner == plan.planner
    assert check_certificate(asked, chosen).is_valid


def test_simulations_are_none_of_the_evaluations(asked: Problem) -> None:
    plan, budget = _searched(asked, "cross-entropy")
    used = budget.evaluations_used
    best_of_finds(asked, plan, budget)
    assert budget.evaluations_used == used


def test_without_seconds_left_the_plan_stays(asked: Problem) -> None:
    plan, _ = _searched(asked, "random")
    assert best_of_finds(asked, plan, Budget(seconds=1e-9)) is plan


def test_rules_stay_what_they_are(asked: Problem) -> None:
    for name in ("greedy", "even", "exact"):
        own = planner_named(name).plan(on_usable_devices(asked), Budget())
        assert [(s.first_layer, s.devices) for s in place(asked, name).plan.stages] == [
            (s.first_layer, s.devices) for s in own.stages
        ]


def test_finds_of_other_sizes_of_micro_batches_are_not_taken(asked: Problem) -> None:
    plan, budget = _searched(asked, "genetic")
    other = load_problem("vit-large", "a100-v100-t4", micro_batch_size=2).plain
    answer = planner_named("greedy").plan(other, Budget())
    assert best_of_finds(other, answer, budget).job == other.job
    assert plan.job != other.job


def test_a_walk_follows_where_it_is_wanted_and_time_is_not_limited(asked: Problem) -> None:
    plan, budget = _searched(asked, "random")
    chosen = best_of_finds(asked, plan, budget)
    walked = best_of_finds(asked, plan, budget, walks=True)
    assert simulated_step_time_s(asked, walked) <= simulated_step_time_s(asked, chosen)
    assert estimate(asked, walked).feasible
    limited = Budget(seconds=600)
    limited.found(1.0, lambda: plan)
    alone = best_of_finds(asked, plan, limited)
    assert best_of_finds(asked, plan, limited, walks=True).runs_like(alone)


def test_finds_of_all_views_are_taken_in_turn(asked: Problem) -> None:
    plan, _ = _searched(asked, "genetic")
    budget, made = Budget(), list[str]()

    def maker(name: str) -> Callable[[], Plan]:
        def make() -> Plan:
            made.append(name)
            return plan

        return make

    for number in range(2 * MOST_FINDS):
        budget.found(1.0 / (1 + number), maker(f"first {number}"), view="first")
    budget.found(5.0, maker("second"), view="second")
    best_of_finds(asked, plan, budget)
    assert "second" in made
    assert len(made) == MOST_FINDS
    assert f"first {2 * MOST_FINDS - 1}" in made, "the newest first"


def test_the_best_finds_of_a_problem_are_where_others_begin(asked: Problem) -> None:
    usable = on_usable_devices(asked)
    plan, budget = _searched(usable, "genetic")
    found = finds_of(usable, budget, most=2)
    assert 0 < len(found) <= 2 * len(usable.views)
    assert all(each.job == plan.job for each in found)
    assert finds_of(on_usable_devices(load_problem("gpt2", "a100-v100-t4")), budget) == []
