"""Placements for the simulator to choose from."""

import pytest

from heterps_agents.auto.planner import AutoPlanner
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.job import Job
from heterps_configs.library import load_profile
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import simulated_step_time_s


@pytest.mark.slow
def test_auto_knows_what_searches_find_with_other_links_inside_a_class() -> None:
    """Alone, they answer every view of equal nodes; one view here hides the better placement."""
    profile = load_profile("resnet-152")
    inside = Link(latency_s=5e-6, bandwidth_bytes_per_s=300e9)
    nodes = tuple(
        Node(
            name=f"n{index}",
            devices=(DeviceGroup(name=f"d{index}", type="RTX-3090", count=4),),
            link=inside,
        )
        for index in range(4)
    )
    between = Link(latency_s=3e-5, bandwidth_bytes_per_s=1.25e9)
    cluster = Cluster(name="cards", nodes=nodes, inter_node_link=between)
    problem = Problem(profile, cluster, Job(dtype=profile.dtype, global_batch_size=128))
    plan = AutoPlanner().plan(problem, Budget())
    found = planner_named("cross-entropy").plan(problem, Budget(10_000))
    assert simulated_step_time_s(problem, plan) <= 1.002 * simulated_step_time_s(problem, found)
