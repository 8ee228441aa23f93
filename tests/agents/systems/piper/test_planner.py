"""Plans for Piper's cost: brute force on small graphs, memory, and the published cells."""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.systems.piper.planner import PiperStage, plan_graph, seconds_per_sample
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.importers.piper import (
    PiperConfiguration,
    PiperEdge,
    PiperGraph,
    PiperNode,
    load_graph,
)

DEGREES = (1, 2)
NAMES = ("plain", "recomputing")


def random_graph(seed: int, num_nodes: int, num_devices: int) -> PiperGraph:
    """A chain with one skipping edge; recomputing takes longer and needs less memory."""
    rng = np.random.default_rng(seed)
    pairs = {(node, node + 1) for node in range(num_nodes - 1)}
    if num_nodes > 2:
        pairs.add((0, num_nodes - 1))
    edges = tuple(PiperEdge(*pair, float(rng.uniform(0, 5))) for pair in sorted(pairs))
    nodes = []
    for node in range(num_nodes):
        before = {edge.source: float(rng.uniform()) for edge in edges if edge.target == node}
        behind = {edge.target: float(rng.uniform()) for edge in edges if edge.source == node}
        seconds, parameters = rng.uniform(1, 3), float(rng.uniform(0, 2))
        # All nodes save alike by recomputing: then the greedy choice is the best one.
        configurations = {
            degree: tuple(
                PiperConfiguration(
                    name,
                    float(seconds / degree + extra_s / degree),
                    parameters / degree,
                    in_flight / degree,
                    1.0 / degree,
                    before,
                    behind,
                )
                for name, extra_s, in_flight in zip(NAMES, (0.0, 0.5), (2.0, 0.5), strict=True)
            )
            for degree in DEGREES
        }
        nodes.append(PiperNode(f"node{node}", configurations))
    return PiperGraph(tuple(nodes), edges, num_devices, float(rng.uniform(3, 12)), 20.0, 4)


def all_plans(graph: PiperGraph) -> Iterator[tuple[PiperStage, ...]]:
    """Every plan of a chain: its nodes closed under successors are its ends."""
    num_nodes = len(graph.nodes)
    widths = [
        (degree, replicas)
        for degree in DEGREES
        for replicas in (1, 2, 4)
        if degree * replicas <= graph.num_devices
    ]
    for count in range(1, num_nodes + 1):
        for cuts in itertools.combinations(range(1, num_nodes), count - 1):
            ranges = list(zip((0, *cuts), (*cuts, num_nodes), strict=True))
            for chosen in itertools.product(widths, repeat=count):
                if sum(degree * replicas for degree, replicas in chosen) > graph.num_devices:
                    continue
                for names in itertools.product(NAMES, repeat=num_nodes):
                    yield tuple(
                        PiperStage(tuple(range(*span)), *width, names[slice(*span)])
                        for span, width in zip(ranges, chosen, strict=True)
                    )


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 4), st.integers(1, 4))
def test_no_plan_is_faster(seed: int, num_nodes: int, num_devices: int) -> None:
    graph = random_graph(seed, num_nodes, num_devices)
    best = min(seconds_per_sample(graph, plan) for plan in all_plans(graph))
    if math.isinf(best):
        with pytest.raises(InfeasibleError):
            plan_graph(graph)
        return
    answer = plan_graph(graph)
    assert answer.seconds_per_sample == pytest.approx(best, rel=1e-8)
    assert answer.seconds_per_sample == seconds_per_sample(graph, answer.stages)


def test_recomputation_is_used_only_where_memory_needs_it() -> None:
    graph = random_graph(0, 2, 1)
    roomy = plan_graph(dataclasses.replace(graph, memory_bytes=6.0))
    tight = plan_graph(dataclasses.replace(graph, memory_bytes=4.5))
    assert roomy.stages[0].configurations == ("plain", "plain")
    assert sorted(tight.stages[0].configurations) == ["plain", "recomputing"]


def test_a_graph_that_does_not_fit_says_what_is_missing() -> None:
    graph = random_graph(0, 4, 1)
    with pytest.raises(InfeasibleError, match="no split of the 4 nodes fits on 1 devices of 4 B"):
        plan_graph(dataclasses.replace(graph, memory_bytes=4.0))
    with pytest.raises(
        InfeasibleError, match=r"node node0 needs at least 1.5 B on a device that has 1 B"
    ):
        plan_graph(dataclasses.replace(graph, memory_bytes=1.0))


def test_a_graph_that_is_too_wide_is_refused() -> None:
    graph = random_graph(0, 1, 1)
    wide = dataclasses.replace(graph, nodes=graph.nodes * 12)
    with pytest.raises(HeterpsError, match="more than 2000 sets of nodes"):
        plan_graph(wide)


def test_published_cells_are_reached() -> None:
    """Runs where `HETERPS_WORKLOADS` names the folder of the published files."""
    path = Path(os.environ.get("HETERPS_WORKLOADS", "")) / "piper" / "bert32a100.json"
    if not path.is_file():
        return
    gibibyte = 2.0**30
    graph = dataclasses.replace(load_graph(path), bandwidth_bytes_per_s=25 * gibibyte)
    for memory, devices, expected in ((2, 32, 0.0665495), (8, 8, 0.165856), (80, 8, 0.122007)):
        case = dataclasses.replace(graph, num_devices=devices, memory_bytes=memory * gibibyte)
        assert plan_graph(case).seconds_per_sample == pytest.approx(expected, rel=1e-5)
