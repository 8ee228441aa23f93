"""Contiguous splits: equal to trying every assignment, and honest where that is too much."""

from __future__ import annotations

import math
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.splits.contiguous import split_contiguous
from heterps_agents.splits.convex_groups import convex_groups
from heterps_agents.splits.ideals import ideal_tables
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.importers.dnn_partitioning import load_dnn_partitioning
from heterps_envs.graphs.operators import assignment_problems, graph_arrays, max_load
from tests.envs.small_graphs import is_contiguous, least_contiguous_load_s, random_graph

SEEDS = st.integers(0, 100_000)


def branches(lengths: tuple[int, ...], **changes: object) -> OperatorGraph:
    """A node, branches of so many nodes of one second behind it, and a node that joins them."""
    edges, count, ends = [], 1, []
    for length in lengths:
        edges += [(0 if step == 0 else count + step - 1, count + step) for step in range(length)]
        count += length
        ends.append(count - 1)
    edges += [(end, count) for end in ends]
    node = {"accelerator_s": 1, "cpu_s": 10, "memory_bytes": 1, "communication_s": 0.125}
    graph = {
        "name": "branches",
        "num_accelerators": 2,
        "nodes": [{"name": f"n{index}", **node} for index in range(count + 1)],
        "edges": edges,
    }
    return OperatorGraph.from_mapping(graph | changes)


@pytest.mark.slow
@given(SEEDS)
@settings(max_examples=60, deadline=None)
def test_no_contiguous_assignment_is_better(seed: int) -> None:
    graph = random_graph(seed)
    best_s = least_contiguous_load_s(graph)
    if math.isinf(best_s):
        with pytest.raises(InfeasibleError):
            split_contiguous(graph)
        return
    split = split_contiguous(graph)
    assert assignment_problems(graph, split.assignment) == []
    assert is_contiguous(graph, split.assignment)
    assert split.proven
    assert split.max_load_s == pytest.approx(best_s)
    assert split.max_load_s == pytest.approx(max_load(graph, split.assignment))


@given(SEEDS)
@settings(max_examples=50, deadline=None)
def test_the_bound_of_a_graph_that_is_too_wide_holds(seed: int) -> None:
    graph = random_graph(seed)
    try:
        exact = split_contiguous(graph)
        quick = split_contiguous(graph, max_ideals=1)
    except InfeasibleError:
        return
    assert quick.num_ideals is None
    assert assignment_problems(graph, quick.assignment) == []
    assert quick.bound_s <= exact.max_load_s * (1 + 1e-12)
    assert exact.max_load_s <= quick.max_load_s * (1 + 1e-12)
    assert quick.max_load_s == pytest.approx(quick.linear_max_load_s)


def test_one_execution_order_is_not_always_enough() -> None:
    better = 0
    for seed in range(200_080, 200_090):
        split = split_contiguous(random_graph(seed))
        assert split.max_load_s <= split.linear_max_load_s * (1 + 1e-12)
        better += split.max_load_s < 0.99 * split.linear_max_load_s
    assert better


def test_many_ideals_are_searched_from_the_lower_bound_upwards() -> None:
    graph = branches((16, 16, 16), num_accelerators=3)
    split = split_contiguous(graph)
    assert split.num_ideals == 2 + 17**3
    assert split.proven
    # 50 nodes on three devices, each with the nets of a branch and of the ends.
    assert 50 / 3 <= split.max_load_s <= 17 + 4 * 0.125


def test_parallel_branches_have_as_many_ideals_as_the_product_of_their_cuts() -> None:
    groups = convex_groups(graph_arrays(branches((2, 3))))
    tables = ideal_tables(groups, 100)
    assert tables is not None
    assert len(tables.words) == 1 + 3 * 4 + 1  # nothing; node 0 and any cuts; everything
    assert ideal_tables(groups, 13) is None


def test_a_node_without_work_stays_with_its_only_neighbour() -> None:
    nodes = [
        {"name": "weight", "accelerator_s": 0, "cpu_s": 0, "communication_s": 1},
        {"name": "matmul", "accelerator_s": 1, "cpu_s": 1, "communication_s": 1},
    ]
    graph = branches((), nodes=nodes, edges=[(0, 1)])
    groups = convex_groups(graph_arrays(graph))
    assert groups.group_of_node.tolist() == [0, 0]
    assert len(groups.net_s) == 0


def test_joined_memory_is_parted_again_where_it_does_not_fit() -> None:
    nodes = [
        {"name": "weight", "accelerator_s": 0, "cpu_s": 0, "memory_bytes": 6},
        {"name": "matmul", "accelerator_s": 1, "cpu_s": 1, "memory_bytes": 6},
    ]
    graph = branches((), nodes=nodes, edges=[(0, 1)], accelerator_memory_bytes=10)
    split = split_contiguous(graph)
    assert sorted(split.assignment) == [0, 1]
    assert split.proven


def test_what_does_not_fit_is_named() -> None:
    with pytest.raises(InfeasibleError, match=r"branches: n0 .* takes 1 B, 0\.5 B more"):
        split_contiguous(branches((1, 1), accelerator_memory_bytes=0.5))
    with pytest.raises(InfeasibleError, match="the nodes take 4 B, 1 B more than all"):
        split_contiguous(branches((1, 1), accelerator_memory_bytes=1.5))


def test_a_backward_node_must_not_feed_a_forward_node() -> None:
    nodes = [
        {"name": "gradient", "accelerator_s": 1, "is_backward": True},
        {"name": "forward", "accelerator_s": 1},
    ]
    with pytest.raises(HeterpsError, match="from a backward node to a forward node"):
        split_contiguous(branches((), nodes=nodes, edges=[(0, 1)]))


def test_published_workloads_are_split_with_proof() -> None:
    """Runs where `HETERPS_WORKLOADS` names the folder of the published files."""
    folder = Path(os.environ.get("HETERPS_WORKLOADS", "")) / "dnn-partitioning/throughput-inputs"
    for path in sorted(folder.glob("*/*.json")):
        graph = load_dnn_partitioning(path)
        split = split_contiguous(graph)
        assert split.proven
        assert assignment_problems(graph, split.assignment) == []
