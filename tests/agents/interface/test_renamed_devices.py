"""Renaming identical devices, or listing them in another order, changes no plan's value."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

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


@pytest.mark.slow
@pytest.mark.parametrize("planner", ["exact", "greedy", "auto"])
@settings(max_examples=8, deadline=None)
@given(order=st.permutations(range(2)), split=st.booleans())
def test_other_names_and_another_order_give_a_plan_of_equal_value(
    planner: str, order: list[int], split: bool
) -> None:
    profile, cluster = load_profile("vit-large"), load_cluster("a100-v100")
    seconds = []
    for entry in (cluster, renamed(cluster.to_mapping(), order, split)):
        problem = Problem(profile, entry, JOB)
        plan = planner_named(planner, seed=0).plan(problem, Budget())
        seconds.append(estimate(problem, plan).closed_form_step_time_s)
    assert seconds[1] == pytest.approx(seconds[0], rel=1e-12)
