"""Pipelines on machines of machines: equal to trying everything, by the formula alone."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.systems.pipedream.planner import PipelineStage, split_hierarchical
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.pipedream import load_pipedream
from tests.envs.small_graphs import random_graph

SEEDS = st.integers(0, 100_000)


def forward_graph(seed: int) -> OperatorGraph:
    """A random graph without backward nodes, colour classes and limits."""
    graph = random_graph(seed)
    kept = [index for index, node in enumerate(graph.nodes) if not node.is_backward]
    edges = [edge for edge in graph.edges if set(edge) <= set(kept)]
    nodes = [graph.nodes[index].changed(color_class=None) for index in kept]
    return graph.changed(nodes=tuple(nodes), edges=tuple(edges))


def stage_s(
    unit_s: float, parameters: float, replicas: int, bandwidth: float, units_below: int
) -> float:
    """The published formula; `units_below` is 1 for stages that are not the first."""
    sync_s = 4 * (replicas - 1) * parameters / (bandwidth * replicas) / units_below
    return (unit_s + sync_s) / replicas


def fastest_by_trying(
    graph: OperatorGraph, units: Sequence[int], bandwidths: Sequence[float], straight: bool
) -> float:
    """Every chain of ideals with every number of replicas."""
    nodes = range(len(graph.nodes))
    subsets = [frozenset(i for i in nodes if mask >> i & 1) for mask in range(2 ** len(nodes))]
    ideals = [s for s in subsets if all(a in s for a, b in graph.edges if b in s)]

    @cache
    def fastest(level: int, start: frozenset[int], end: frozenset[int], left: int) -> float:
        """The slowest stage of the best pipeline with at most `left` units."""
        best = float("inf")
        for first in ideals:
            if not start <= first < end:
                continue
            inside = end - first
            parameters = sum(graph.nodes[node].parameter_bytes for node in inside)
            below = units[level - 1] if level and first == start else 1
            for replicas in range(1, 2 if straight else left + 1):
                unit_s = (
                    fastest(level - 1, first, end, units[level - 1])
                    if level
                    else sum(graph.nodes[node].accelerator_s for node in inside)
                )
                last_s = stage_s(unit_s, parameters, replicas, bandwidths[level], below)
                rest_s = 0.0
                if first != start:
                    if replicas == left:
                        continue
                    rest_s = fastest(level, start, first, left - replicas)
                best = min(best, max(last_s, rest_s))
        return best

    return fastest(len(units) - 1, frozenset(), frozenset(nodes), units[-1])


def slowest_stage_s(
    graph: OperatorGraph,
    stages: Sequence[PipelineStage],
    units: Sequence[int],
    bandwidths: Sequence[float],
) -> float:
    """The formula over the stages of a result."""
    slowest = 0.0
    for place, stage in enumerate(stages):
        nodes = [graph.nodes[index] for index in stage.nodes]
        unit_s = sum(node.accelerator_s for node in nodes)
        if len(units) > 1:
            unit_s = slowest_stage_s(graph, stage.stages, units[:-1], bandwidths[:-1])
        below = units[-2] if len(units) > 1 and place == 0 else 1
        parameters = sum(node.parameter_bytes for node in nodes)
        slowest = max(slowest, stage_s(unit_s, parameters, stage.replicas, bandwidths[-1], below))
    return slowest


@given(SEEDS, st.sampled_from([(1,), (3,), (2, 2), (2, 3)]), st.booleans())
@settings(max_examples=60)
def test_no_pipeline_is_faster(seed: int, units: tuple[int, ...], straight: bool) -> None:
    graph = forward_graph(seed)
    bandwidths = [2.0, 1.0][: len(units)]
    pipeline = split_hierarchical(graph, units, bandwidths, straight)
    assert pipeline.proven
    assert pipeline.stage_time_s == pytest.approx(
        fastest_by_trying(graph, units, bandwidths, straight)
    )
    assert slowest_stage_s(graph, pipeline.stages, units, bandwidths) == pytest.approx(
        pipeline.stage_time_s
    )
    assert sorted(node for stage in pipeline.stages for node in stage.nodes) == list(
        range(len(graph.nodes))
    )
    assert sum(stage.replicas for stage in pipeline.stages) <= units[-1]


@given(SEEDS)
@settings(max_examples=30)
def test_stages_follow_the_edges(seed: int) -> None:
    graph = forward_graph(seed)
    pipeline = split_hierarchical(graph, [3], [1.0])
    stage_of = {node: i for i, stage in enumerate(pipeline.stages) for node in stage.nodes}
    assert all(stage_of[producer] <= stage_of[consumer] for producer, consumer in graph.edges)


@given(SEEDS)
@settings(max_examples=30)
def test_the_bound_of_a_graph_that_is_too_wide_holds(seed: int) -> None:
    graph = forward_graph(seed)
    exact = split_hierarchical(graph, [2, 2], [1.0, 1.0])
    quick = split_hierarchical(graph, [2, 2], [1.0, 1.0], max_ideals=1)
    assert quick.num_ideals is None
    assert slowest_stage_s(graph, quick.stages, [2, 2], [1.0, 1.0]) == pytest.approx(
        quick.stage_time_s
    )
    assert quick.bound_s <= exact.stage_time_s * (1 + 1e-12)
    assert exact.stage_time_s <= quick.stage_time_s * (1 + 1e-12)


def test_racks_of_machines_nest_three_levels() -> None:
    """Eight equal nodes on two racks of two machines of two devices: one node for each."""
    nodes = [{"name": f"n{i}", "accelerator_s": 1, "parameter_bytes": 1} for i in range(8)]
    graph = OperatorGraph.from_mapping(
        {
            "name": "row",
            "num_accelerators": 8,
            "nodes": nodes,
            "edges": [(i, i + 1) for i in range(7)],
        }
    )
    for max_ideals in (100, 1):
        pipeline = split_hierarchical(graph, [2, 2, 2], [1.0] * 3, max_ideals=max_ideals)
        assert pipeline.stage_time_s == 1
        assert [stage.nodes for stage in pipeline.stages] == [(0, 1, 2, 3), (4, 5, 6, 7)]
        assert [stage.nodes for stage in pipeline.stages[1].stages] == [(4, 5), (6, 7)]
        assert slowest_stage_s(graph, pipeline.stages, [2, 2, 2], [1.0] * 3) == 1


def test_levels_need_a_bandwidth_each() -> None:
    graph = forward_graph(0)
    with pytest.raises(HeterpsError, match="2 levels of units and 1 bandwidths"):
        split_hierarchical(graph, [4, 4], [1e9])
    with pytest.raises(HeterpsError, match="must be positive"):
        split_hierarchical(graph, [0], [1e9])


def test_published_graphs_are_split_with_proof() -> None:
    """Runs where `HETERPS_WORKLOADS` names the folder of the published files."""
    folder = Path(os.environ.get("HETERPS_WORKLOADS", "")) / "pipedream"
    for path in sorted(folder.glob("*net*.txt")):
        graph = load_pipedream(path)
        pipeline = split_hierarchical(graph, [8], [1e9], straight=True)
        assert pipeline.stage_time_s == pytest.approx(
            slowest_stage_s(graph, pipeline.stages, [8], [1e9])
        )
