"""Nodes of unlike devices: the links inside them count, however slow those between nodes are."""

from __future__ import annotations

from heterps_agents.finishing.chains import Column, routed
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.library import load_profile
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of
from heterps_envs.simulator.simulate import simulated_step_time_s
from heterps_envs.step_bounds.executable import least_executable_s


def test_replicas_of_unlike_devices_on_one_node_are_not_below_the_bound() -> None:
    kinds = {"fast": "RTX-3090", "slow": "RTX-2080-Ti"}
    nodes = [
        {
            "name": f"n{index}",
            "devices": [
                {"name": f"n{index}-{name}", "type": kind, "count": 1}
                for name, kind in kinds.items()
            ],
            "link": "pcie3",
        }
        for index in range(2)
    ]
    cluster = Cluster.from_mapping(
        {"name": "boxes", "nodes": nodes, "inter_node_link": "ethernet-1"}
    )
    profile = load_profile("resnet-152")
    job = Job(dtype=profile.dtype, global_batch_size=32, micro_batch_size=16)
    problem = Problem(profile, cluster, job).plain
    last = profile.num_layers - 1
    chains = [(Column(0, last, (name,)),) for name in problem.device_named if name.startswith("n0")]
    stages, pipelines = routed(chains, [range(1), range(1, 2)])
    plan = plan_of(problem, stages, pipelines, planner="test", seed=0)
    step_time_s = simulated_step_time_s(problem, plan.changed(overlaps_reduce=True))
    assert 0 < least_executable_s(problem) <= step_time_s
