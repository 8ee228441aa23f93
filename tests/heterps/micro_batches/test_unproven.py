"""Sizes of micro-batches that nobody searched are looked at, unless the bound excludes them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps.micro_batches.one_size import place_one_size
from heterps.micro_batches.outlooks import cost_of
from heterps.micro_batches.place_result import PlaceResult
from heterps.micro_batches.sizes import open_sizes, with_size
from heterps.micro_batches.unproven import of_unproven_sizes
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_envs.problem import Problem


def asked_and_worst() -> tuple[list[Problem], PlaceResult]:
    """All sizes, and the plan of one that is not the best."""
    problem = load_problem("llama-tiny", "local-emulated")
    asked = [with_size(problem, size) for size in open_sizes(problem)]
    planner = planner_named("auto", seed=0)
    return asked, place_one_size(asked[-1], planner, Budget())


def test_better_plans_of_other_sizes_are_found_one_after_the_other() -> None:
    asked, known = asked_and_worst()
    found = list(of_unproven_sizes(known, asked, planner_named("auto", seed=0), Budget()))
    costs = [cost_of(known), *map(cost_of, found)]
    assert found
    assert costs == sorted(costs, reverse=True)
    sizes = [result.plan.job.micro_batch_size for result in found]
    assert known.plan.job.micro_batch_size not in sizes
    best = place(load_problem("llama-tiny", "local-emulated"), "auto")
    assert cost_of(best) <= cost_of(found[-1])


@pytest.mark.parametrize("planner", ["exact", "ppo"])
def test_other_planners_have_nothing_to_add(planner: str) -> None:
    asked, known = asked_and_worst()
    assert not list(of_unproven_sizes(known, asked, planner_named(planner, seed=0), Budget()))


def test_nor_has_a_spent_budget_or_a_price() -> None:
    asked, known = asked_and_worst()
    auto = planner_named("auto", seed=0)
    spent = Budget(evaluations=1)
    spent.spend()
    assert not list(of_unproven_sizes(known, asked, auto, spent))
    job = known.problem.job.changed(objective="price")
    priced = replace(known, problem=replace(known.problem, job=job))
    assert not list(of_unproven_sizes(priced, asked, auto, Budget()))
