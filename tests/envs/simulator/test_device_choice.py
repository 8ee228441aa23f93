"""The compiled choice of devices against its definition in plain Python."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pytest

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.errors import InfeasibleError
from heterps_configs.library import load_profile
from heterps_envs.closed_form.placement import PlacedStage, Placement
from heterps_envs.problem import Problem
from heterps_envs.simulator.device_choice import chosen_devices
from tests.envs.reference_choice import reference_devices

TYPES = ("V100-16G", "T4", "A100-40G")


def some_problem(rng: np.random.Generator) -> Problem:
    """Nodes of unlike devices and links, some of them directed, in two regions; some busy hosts."""
    nodes: list[dict[str, Any]] = []
    has_hosts = rng.random() < 0.5
    kinds = [_link(rng) for _ in range(2)]
    for index in range(int(rng.integers(1, 9))):
        chosen = rng.choice(TYPES, int(rng.integers(1, 3)), replace=False)
        groups = [
            {"name": f"{kind}-{index}", "type": str(kind), "count": int(rng.choice([1, 2, 4, 8]))}
            for kind in chosen
        ]
        node: dict[str, Any] = {"name": f"n{index}", "devices": groups}
        node["region"] = str(rng.choice(["a", "b"]))
        node["link"] = kinds[int(rng.integers(2))]
        if rng.random() < 0.2:
            node["reverse_link"] = _link(rng)
        if has_hosts and rng.random() < 0.5:
            node["host"] = {"action_s": float(rng.choice([0, 1e-4, 3e-3])), "step_s": 0.01}
        nodes.append(node)
    cluster: dict[str, Any] = {"name": "drawn", "nodes": nodes, "inter_node_link": _link(rng)}
    if rng.random() < 0.5:
        cluster["inter_region_link"] = _link(rng)
    if len(nodes) > 2:
        cluster["link_overrides"] = [
            {"between": ["n0", "n1"], "link": _link(rng), "reverse_link": _link(rng)},
            {"between": ["n2", "n1"], "link": _link(rng)},
        ]
    job = Job(global_batch_size=int(rng.choice([4, 16, 48])), dtype="float16")
    return Problem(load_profile("gpt2"), Cluster.from_mapping(cluster), job)


def _link(rng: np.random.Generator) -> dict[str, float]:
    return {
        "latency_s": float(rng.choice([0, 1e-5, 1e-4, 3e-3])),
        "bandwidth_bytes_per_s": float(rng.choice([1e9, 3e9, 1e10])),
    }


def some_placement(rng: np.random.Generator, problem: Problem) -> Placement:
    """Stages with replicas, and in every other placement groups."""
    layers = problem.profile.num_layers
    cuts = rng.choice(np.arange(1, layers), int(rng.integers(0, 5)), replace=False)
    left, stages = [entry.count for entry in problem.classes], list[PlacedStage]()
    degrees = [1, 1, 2, 4] if rng.random() < 0.5 else [1]
    for first, stop in pairwise([0, *np.sort(cuts).tolist(), layers]):
        degree = int(rng.choice(degrees))
        fitting = [kind for kind, count in enumerate(left) if count >= degree] or [0]
        kind = int(rng.choice(fitting))
        replicas = int(rng.integers(1, max(left[kind] // degree, 1) + 1))
        left[kind] -= replicas * degree
        stages.append(PlacedStage(first, stop - 1, kind, replicas, degree=degree))
    return tuple(stages) if min(left) >= 0 else (PlacedStage(0, layers - 1, 0),)


@pytest.mark.parametrize("seed", range(40))
def test_the_devices_are_those_of_the_definition(seed: int) -> None:
    rng = np.random.default_rng(seed)
    problem = some_problem(rng)
    for _ in range(10):
        placement = some_placement(rng, problem)
        try:
            expected = reference_devices(problem, placement)
        except InfeasibleError:
            with pytest.raises(InfeasibleError):
                chosen_devices(problem, placement)
            continue
        names = [[tuple(each.name for each in group) for group in own] for own in expected]
        assert chosen_devices(problem, placement) == names


@pytest.mark.parametrize("busy", range(3))
def test_a_slow_host_is_avoided_wherever_it_stands_in_the_file(busy: int) -> None:
    nodes = [
        {
            "name": f"n{index}",
            "devices": [{"name": f"d{index}", "type": "T4"}],
            "host": {"action_s": 0.05} if index == busy else {},
        }
        for index in range(3)
    ]
    cluster = Cluster.from_mapping(
        {"name": "hosts", "nodes": nodes, "inter_node_link": "ethernet-10"}
    )
    problem = Problem(load_profile("gpt2"), cluster, Job(global_batch_size=16, dtype="float16"))
    last = problem.profile.num_layers - 1
    placement = (PlacedStage(0, last - 1, 0), PlacedStage(last, last, 0))
    devices = {group[0] for stage in chosen_devices(problem, placement) for group in stage}
    assert devices == {f"d{index}" for index in range(3) if index != busy}
    # Where all are used, it has no large stage.
    whole = (PlacedStage(0, last - 2, 0), *(PlacedStage(i, i, 0) for i in (last - 1, last)))
    assert chosen_devices(problem, whole)[0] != [(f"d{busy}",)]


@pytest.mark.parametrize("seed", range(20))
def test_links_by_node_are_those_of_the_cluster(seed: int) -> None:
    problem = some_problem(np.random.default_rng(seed))
    devices = problem.cluster.devices
    ends = [(a, b) for a in range(len(devices)) for b in range(len(devices)) if a != b]
    first, second = np.array(ends or np.empty((0, 2)), np.int64).T
    found = np.stack(problem.links.by_node.between(first, second), axis=1).tolist()
    links = [problem.cluster.link(devices[a], devices[b]) for a, b in ends]
    assert found == [[link.latency_s, link.bandwidth_bytes_per_s] for link in links]
