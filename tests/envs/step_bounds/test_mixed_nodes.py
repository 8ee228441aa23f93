"""Nodes of unlike devices: the links inside them count, however slow those between nodes are."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_agents.finishing.chains import Column, routed
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.documents.plan import Bound, Pipeline, Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_profile
from heterps_envs.options import allows_unlike_groups, has_unlike_groups
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import plan_of
from heterps_envs.simulator.simulate import simulated_step_time_s
from heterps_envs.step_bounds.executable import executable_bound, least_executable_s
from tests.envs.small_problems import FAST, chain_problem, with_splits


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


def two_kinds(tensor_parallel: tuple[int, ...], counts: tuple[int, int] = (1, 1)) -> Problem:
    """Splittable layers, and one node of two classes."""
    problem = chain_problem([0.1] * 4, [0.2] * 4, speeds=(1.0, 0.9), counts=counts, link=FAST)
    return replace(with_splits(problem), strategy=Strategy(tensor_parallel=tensor_parallel))


def test_nothing_is_said_of_groups_of_unlike_devices() -> None:
    problem = two_kinds((2,), (2, 2))
    first, second = (entry.devices for entry in problem.classes)
    alike = plan_of_group(problem, (first[0].name, first[1].name))
    unlike = plan_of_group(problem, (first[0].name, second[0].name))
    assert allows_unlike_groups(problem)
    for plan, is_unlike in ((alike, False), (unlike, True)):
        step_time_s = simulated_step_time_s(problem, plan)
        bound = executable_bound([problem], plan, step_time_s)
        assert has_unlike_groups(problem, plan) == is_unlike
        assert (bound == Bound()) == is_unlike


def test_where_all_groups_would_be_unlike_the_strategy_allows_none() -> None:
    problem = two_kinds((2,))
    with pytest.raises(HeterpsError, match=r"no node of .* holds groups of 2 equal devices"):
        least_executable_s(problem)
    assert not allows_unlike_groups(two_kinds((1,)))
    assert not allows_unlike_groups(two_kinds((3,)))


def plan_of_group(problem: Problem, devices: tuple[str, ...]) -> Plan:
    stage = Stage(name="all", first_layer=0, last_layer=3, devices=devices)
    pipeline = Pipeline(stages=("all",), micro_batches=tuple(range(problem.job.num_micro_batches)))
    return plan_of(problem, (stage,), (pipeline,), planner="test", seed=0)
