"""Partitions of device graphs: brute force, what exchanges gain, links and nodes that are kept."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.systems.hexiscale.kernels import Balance, exchange
from heterps_agents.systems.hexiscale.partition import partition, partition_cost
from tests.agents.systems.hexiscale.small_graphs import SmallGraph, all_partitions, random_graph


@pytest.mark.slow
@pytest.mark.parametrize("weight", [0.3, 3.0])
@pytest.mark.parametrize("num_parts", [2, 3])
def test_small_graphs_get_the_best_partition_there_is(num_parts: int, weight: float) -> None:
    for seed in range(16):
        # Up to six devices, of which some are alike.
        graph = random_graph(seed, 3 + seed % 4, most=2 if seed % 4 == 0 else 1)
        found = partition(graph, num_parts, weight)
        best = min(
            partition_cost(graph, parts, weight) for parts in all_partitions(graph, num_parts)
        )
        assert partition_cost(graph, found, weight) == pytest.approx(best, abs=1e-9)


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 8), st.integers(1, 5))
def test_all_devices_are_dealt_and_no_part_is_empty(
    seed: int, num_kinds: int, num_parts: int
) -> None:
    graph = random_graph(seed, num_kinds, most=4)
    num_parts = min(num_parts, int(graph.counts.sum()))
    found = partition(graph, num_parts, 1.0, seed)
    assert found.shape == (num_parts, num_kinds)
    assert (found.sum(axis=0) == graph.counts).all()
    assert (found.sum(axis=1) > 0).all()
    assert (found == partition(graph, num_parts, 1.0, seed)).all()


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(2, 6), st.floats(0.1, 5.0))
def test_exchanges_gain_what_the_partition_costs_less(
    seed: int, num_kinds: int, weight: float
) -> None:
    graph = random_graph(seed, num_kinds, most=3)
    rng = np.random.default_rng(seed)
    one = rng.integers(0, graph.counts + 1)
    parts = np.stack((one, graph.counts - one))
    if not parts.sum(axis=1).all():
        return
    total = float(graph.counts @ graph.bandwidth @ graph.counts)
    total -= float(graph.counts @ np.diag(graph.bandwidth))
    if total == 0:
        return
    targets = np.tile(graph.weights @ graph.counts / 2, (2, 1))
    balance = Balance(targets, np.full(2, weight / 2), np.ones(2, np.int64), 2 / total)
    before = partition_cost(graph, parts, weight)
    gained = exchange(parts[0], parts[1], graph.bandwidth, graph.weights, balance)
    assert gained >= 0
    assert before - partition_cost(graph, parts, weight) == pytest.approx(gained, abs=1e-9)
    assert (parts.sum(axis=0) == graph.counts).all()


def nodes(num_nodes: int, devices_of_a_node: int) -> SmallGraph:
    """Nodes of equal devices, whose own links are a hundred times as fast as those between."""
    bandwidth = np.full((num_nodes, num_nodes), 1.0) + 99 * np.eye(num_nodes)
    counts = np.full(num_nodes, devices_of_a_node)
    return SmallGraph(counts, np.ones((2, num_nodes)), bandwidth)


def test_nodes_stay_whole_and_parts_are_equal() -> None:
    found = partition(nodes(6, 4), 3, 1.0)
    assert sorted(found.sum(axis=1).tolist()) == [8, 8, 8]
    assert all(sorted(part.tolist()) == [0, 0, 0, 0, 4, 4] for part in found)


def test_more_parts_than_nodes_divide_nodes_equally() -> None:
    found = partition(nodes(2, 4), 4, 1.0)
    assert sorted(part.max() for part in found) == [2, 2, 2, 2]
    assert (found.sum(axis=1) == 2).all()


def test_balance_weighs_against_links() -> None:
    """A node of three and a node of one: cut the slow link, or make two parts of two."""
    graph = SmallGraph(np.array([3, 1]), np.ones((2, 2)), np.array([[100.0, 1.0], [1.0, 100.0]]))
    assert sorted(partition(graph, 2, 0.1).sum(axis=1).tolist()) == [1, 3]
    assert sorted(partition(graph, 2, 10.0).sum(axis=1).tolist()) == [2, 2]
