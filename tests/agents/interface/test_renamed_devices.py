"""Renaming identical devices, or listing them in another order, changes no plan's value."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

JOB = Job(global_batch_size=8, micro_batch_size=1, dtype="bfloat16")


def renamed(data: dict[str, Any], order: list[int], split: bool) -> Cluster:
    """The same machines: nodes in another order, devices one by one, other names everywhere."""
    nodes = []
    for index in order:
        node = data["nodes"][index]
        groups = []
        for group in node["devices"]:
            count = group.get("count", 1)
            for number in range(count if split else 1):
                single = {**group, "name": f"card{index}-{number}", "count": 1 if split else count}
                groups.append(single)
        nodes.append({**node, "name": f"host{index}", "devices": groups})
    return Cluster.from_mapping({**data, "name": "renamed", "nodes": nodes})


def step_time_s(planner: str, cluster: Cluster) -> float | None:
    """That of the planner's plan, by the closed form."""
    problem = Problem(load_profile("vit-large"), cluster, JOB)
    plan = planner_named(planner, seed=0).plan(problem, Budget())
    return estimate(problem, plan).closed_form_step_time_s


@cache
def shipped_step_time_s(planner: str) -> float | None:
    """The same under the cluster's own names, once for all that it is compared with."""
    return step_time_s(planner, load_cluster("a100-v100"))


@pytest.mark.slow
@pytest.mark.parametrize(("split", "order"), [(True, [0, 1]), (False, [1, 0])])
@pytest.mark.parametrize("planner", ["exact", "greedy", "auto"])
def test_other_names_and_another_order_give_a_plan_of_equal_value(
    planner: str, split: bool, order: list[int]
) -> None:
    other = renamed(load_cluster("a100-v100").to_mapping(), order, split)
    expected_s = shipped_step_time_s(planner)
    assert expected_s is not None
    assert step_time_s(planner, other) == pytest.approx(expected_s, rel=1e-12)
