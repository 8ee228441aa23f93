"""The least price where devices cost nothing: the fastest of free plans, and what is said of it."""

from __future__ import annotations

from typing import Any

import pytest

from heterps.planning.compare import compare
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Strategy
from heterps_envs.problem import Problem


def problem_on(strategy: Strategy | None = None, **paid: float) -> Problem:
    """GPT-2 for the least price, on devices that cost nothing unless it is said what they cost."""
    types = {"A100": "A100-40G", "T4": "T4", "V100": "V100-16G"}
    groups = [
        {"name": name, "type": kind, "count": 2, "price_usd_per_hour": paid.get(name, 0.0)}
        for name, kind in types.items()
    ]
    cluster = {"name": "f", "nodes": [{"name": "n", "link": "pcie3", "devices": groups}]}
    pinned: dict[str, Any] = {"strategy": strategy, "micro_batch_size": 4} if strategy else {}
    return load_problem(
        "gpt2", Cluster.from_mapping(cluster), objective="price", global_batch_size=32, **pinned
    )


@pytest.mark.parametrize("planner", ["exact", "greedy", "annealing"])
def test_of_plans_that_cost_nothing_the_fastest_is_taken(planner: str) -> None:
    free = place(problem_on(), planner, budget=Budget(evaluations=3000))
    assert free.estimate.price_usd_per_million_samples == 0
    assert "no plan costs less than nothing" in free.optimality()
    pinned = place(problem_on(Strategy()), planner, budget=Budget(evaluations=3000))
    assert free.estimate.step_time_s <= pinned.estimate.step_time_s
    sizes = {each.size for each in free.tried_sizes if each.found is not None}
    assert len(sizes) > 1


def test_what_a_free_plan_is_from_the_fastest_is_said() -> None:
    result = place(problem_on(Strategy()), "greedy")
    assert result.bound.status == "bounded"
    assert result.bound.gap is not None
    assert result.bound.gap < 1


def test_devices_that_cost_are_left_alone_where_others_are_free() -> None:
    problem = problem_on(Strategy(), V100=3.0)
    result = place(problem, "exact")
    assert result.estimate.price_usd_per_million_samples == 0
    assert result.bound.status == "proven"
    rows = compare(problem, ["exact", "even"]).rows
    gaps = {row.planner: row.gap for row in rows}
    assert gaps["exact"] == 0
    assert gaps["even"] is None  # it takes all devices
