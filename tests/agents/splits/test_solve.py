"""Splits that need not be contiguous: equal to trying every assignment, bounds never too high."""

from __future__ import annotations

import math
import os
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.splits.best_sets import best_set
from heterps_agents.splits.border_states import border_states
from heterps_agents.splits.bound import SplitBound
from heterps_agents.splits.groups import GroupGraph, clusters_over, group_graph, merge
from heterps_agents.splits.milp import milp_split
from heterps_agents.splits.resplit import resplit_pairs
from heterps_agents.splits.search import Devices, anneal, fits, loads_of
from heterps_agents.splits.solve import split_graph
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.dnn_partitioning import load_dnn_partitioning
from heterps_envs.graphs.operators import assignment_problems, device_loads, graph_arrays, max_load
from tests.envs.small_graphs import all_assignments, least_load_s, random_graph

SEEDS = st.integers(0, 100_000)


def devices_of(graph: OperatorGraph) -> Devices:
    capacity = graph.accelerator_memory_bytes
    memory_bytes = math.inf if capacity is None else capacity
    return Devices(graph.num_accelerators, graph.num_cpus, memory_bytes)


def by_group(graph: OperatorGraph, choice: tuple[int, ...]) -> np.ndarray:
    group = graph_arrays(graph).group
    assignment = np.zeros(int(group.max()) + 1, np.int64)
    assignment[group] = choice
    return assignment


def chain(count: int, **changes: object) -> OperatorGraph:
    """Nodes of one second in a row."""
    node = {"accelerator_s": 1, "cpu_s": 10, "memory_bytes": 1, "communication_s": 0.25}
    graph = {
        "name": "chain",
        "num_accelerators": 2,
        "nodes": [{"name": f"n{index}", **node} for index in range(count)],
        "edges": [(index, index + 1) for index in range(count - 1)],
    }
    return OperatorGraph.from_mapping(graph | changes)


def load_of_set(graph: GroupGraph, chosen: np.ndarray) -> float:
    """Of an accelerator that holds the chosen groups, from the definition."""
    load = float(graph.accelerator_s[chosen].sum())
    for index in range(graph.num_nets):
        inside = chosen[graph.net(index)]
        if inside.any() and not inside.all():
            load += float(graph.net_s[index])
    return load


@pytest.mark.slow
@settings(max_examples=30, deadline=None)
@given(SEEDS)
def test_the_split_is_the_best_of_all_and_proven(seed: int) -> None:
    graph = random_graph(seed)
    best_s = least_load_s(graph)
    if math.isinf(best_s):
        with pytest.raises(HeterpsError, match=r"random .*: no split fits: .* B for"):
            split_graph(graph)
        return
    split = split_graph(graph, target_gap=0.0)
    assert assignment_problems(graph, split.assignment) == []
    assert split.max_load_s == max_load(graph, split.assignment)
    assert split.max_load_s == pytest.approx(best_s, rel=1e-6)
    assert split.lower_bound_s <= best_s * (1 + 1e-9)
    assert split.is_proven


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_groups_have_the_loads_of_their_nodes(seed: int) -> None:
    graph = random_graph(seed)
    groups = group_graph(graph_arrays(graph))
    for choice in islice(all_assignments(graph), 20):
        found = loads_of(groups, devices_of(graph), by_group(graph, choice))
        assert found == pytest.approx(device_loads(graph, choice))


@settings(max_examples=60, deadline=None)
@given(SEEDS, st.floats(0, 3))
def test_a_merged_graph_has_the_loads_of_the_finer_one(seed: int, limit_s: float) -> None:
    graph = random_graph(seed)
    groups = group_graph(graph_arrays(graph))
    clusters = clusters_over(groups, limit_s)
    coarse = merge(groups, clusters)
    devices = Devices(2, 1, math.inf)
    assignment = np.random.default_rng(seed).integers(0, 2, coarse.num_groups)
    expected = loads_of(groups, devices, assignment[clusters])
    assert loads_of(coarse, devices, assignment) == pytest.approx(expected)
    assert (coarse.net_s <= limit_s * len(graph.nodes)).all()


@settings(max_examples=60, deadline=None)
@given(SEEDS)
def test_the_most_valuable_set_is_the_best_of_all_sets(seed: int) -> None:
    groups = group_graph(graph_arrays(random_graph(seed)))
    size = groups.num_groups
    rng = np.random.default_rng(seed)
    value = rng.normal(1, 2, size)
    sets = (np.arange(2**size)[:, None] >> np.arange(size)) % 2 == 1
    loads = np.array([load_of_set(groups, chosen) for chosen in sets])
    limit_s = float(rng.uniform(0.3, 1.1) * max(loads.max(), 1.0))
    expected = float((sets @ value)[loads <= limit_s].max())
    found = best_set(border_states(groups), value, groups.accelerator_s, limit_s, -1.0, 1e-9, 4000)
    assert found.upper >= expected - 1e-9
    # Labels that share a cell of the load are optimistic: then a set a bit over the limit is found.
    within = float((sets @ value)[loads <= limit_s * (1 + 1e-2)].max())
    assert found.upper <= within + 1e-6


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_no_load_that_a_split_keeps_to_is_refuted(seed: int) -> None:
    graph = random_graph(seed)
    best_s = least_load_s(graph)
    if not 0 < best_s < math.inf:
        return
    bound = SplitBound(group_graph(graph_arrays(graph)), devices_of(graph))
    assert bound.at_once() <= best_s * (1 + 1e-9)
    assert not bound.refutes(best_s * (1 + 1e-9), lambda: False)


def test_prices_refute_what_communication_forbids() -> None:
    """Two halves of a chain take three seconds and a message; the average load is only three."""
    graph = chain(6)
    bound = SplitBound(group_graph(graph_arrays(graph)), devices_of(graph))
    assert bound.at_once() == pytest.approx(3.0)
    assert bound.refutes(3.2, lambda: False)
    assert not bound.refutes(3.25, lambda: False)


def test_ignored_nets_keep_the_states_few_and_the_bound_valid() -> None:
    graph = random_graph(3, most_nodes=12)
    groups = group_graph(graph_arrays(graph))
    full, few = border_states(groups), border_states(groups, max_states=40)
    assert full.ignored_s == 0
    assert 0 < few.ignored_s <= groups.net_s.sum()
    assert len(few.next_state) <= 40
    value = np.ones(groups.num_groups)
    limit_s = 0.6 * float(groups.accelerator_s.sum())
    exact, relaxed = (
        best_set(states, value, groups.accelerator_s, limit_s, 0.0, 1e-9).upper
        for states in (full, few)
    )
    assert relaxed >= exact


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_the_integer_programme_agrees_with_trying_everything(seed: int) -> None:
    graph = random_graph(seed)
    best_s = least_load_s(graph)
    found = milp_split(group_graph(graph_arrays(graph)), devices_of(graph), max_seconds=20)
    if math.isinf(best_s):
        assert found == (None, math.inf)
        return
    assert found.assignment is not None
    groups = group_graph(graph_arrays(graph))
    load_s = loads_of(groups, devices_of(graph), found.assignment).max()
    assert load_s == pytest.approx(best_s, rel=1e-6, abs=1e-6)
    assert found.lower_bound_s == pytest.approx(best_s, rel=1e-6, abs=1e-6)


@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_searches_keep_what_fits_and_make_nothing_worse(seed: int) -> None:
    graph = random_graph(seed, most_nodes=8)
    groups, devices = group_graph(graph_arrays(graph)), devices_of(graph)
    start = np.random.default_rng(seed).integers(0, devices.num_accelerators, groups.num_groups)
    if not fits(groups, devices, start):
        return
    order = border_states(groups).order
    annealed = anneal(groups, devices, start, 2000, seed)
    divided = resplit_pairs(groups, devices, annealed, order, lambda: False)
    before, between, after = (
        loads_of(groups, devices, found).max() for found in (start, annealed, divided)
    )
    assert fits(groups, devices, annealed)
    assert fits(groups, devices, divided)
    assert after <= between * (1 + 1e-9) <= before * (1 + 1e-8)


def test_a_known_split_is_never_made_worse_and_must_be_one() -> None:
    graph = chain(8)
    known = [0, 0, 0, 0, 1, 1, 1, 1]
    assert split_graph(graph, known=known).max_load_s <= max_load(graph, known)
    with pytest.raises(HeterpsError, match="device 7 does not exist"):
        split_graph(graph, known=[7] * 8)


def test_a_graph_whose_loads_can_all_be_nothing_is_split() -> None:
    """Only a net costs seconds, and both its ends fit on one device."""
    node = {"accelerator_s": 0, "communication_s": 1.5}
    nodes = [{"name": f"n{index}", "memory_bytes": (0, 3, 1)[index], **node} for index in range(3)]
    graph = chain(3, nodes=nodes, edges=[(0, 1)], num_accelerators=3, accelerator_memory_bytes=3.07)
    assert split_graph(graph, target_gap=0.0).max_load_s == 0


def test_equal_seeds_give_equal_splits() -> None:
    graph = random_graph(11, most_nodes=10)
    assert split_graph(graph, seed=3) == split_graph(graph, seed=3)


def test_memory_that_is_too_small_is_named() -> None:
    graph = chain(6, num_cpus=0, accelerator_memory_bytes=2)
    with pytest.raises(HeterpsError, match="6 B for 2 accelerators of 2 B"):
        split_graph(graph)
    graph = chain(6, accelerator_memory_bytes=3)
    assert split_graph(graph).max_load_s == pytest.approx(3.25)


def test_noncontiguous_is_better_where_a_chain_alternates() -> None:
    """Heavy and light nodes, free links: the heavy ones are spread, whatever lies between."""
    seconds = [4, 1, 1, 1, 1, 4]
    nodes = [{"name": f"n{i}", "accelerator_s": value} for i, value in enumerate(seconds)]
    graph = chain(6, nodes=nodes, num_accelerators=3)
    split = split_graph(graph, target_gap=0.0)
    assert split.max_load_s == 4
    assert split.is_proven


@pytest.mark.slow
def test_wide_graphs_get_a_split_and_a_bound_in_time() -> None:
    """Every node reads two of the sixty before it: no order has few open nets."""
    rng = np.random.default_rng(0)
    edges = {(int(rng.integers(max(0, b - 60), b)), b) for b in range(1, 300) for _ in range(2)}
    nodes = [
        {"name": f"n{index}", "accelerator_s": seconds, "communication_s": seconds / 10}
        for index, seconds in enumerate(rng.uniform(0.1, 1, 300))
    ]
    graph = chain(300, nodes=nodes, edges=sorted(edges), num_accelerators=4)
    states = border_states(group_graph(graph_arrays(graph)), max_states=5000)
    assert states.ignored_s > 0
    split = split_graph(graph, max_seconds=1)
    total_s = sum(node.accelerator_s for node in graph.nodes)
    assert total_s / 4 <= split.lower_bound_s * (1 + 1e-9)
    assert split.lower_bound_s <= split.max_load_s < 0.5 * total_s


def test_published_workloads_are_split_at_least_as_well_as_by_the_integer_programme() -> None:
    """Runs where `HETERPS_WORKLOADS` names the folder of the published files.

    Seconds that HiGHS found on the authors' integer programme; only what takes a moment.
    """
    folder = Path(os.environ.get("HETERPS_WORKLOADS", "")) / "dnn-partitioning/throughput-inputs"
    published_s = {
        "LayerGraphs/bert24_inference": 17.71472e-3,
        "LayerGraphs/bert24_training": 39.78954e-3,
        "OperatorGraphs/bert_l-3_inference": 21.90838e-3,
        "OperatorGraphs/bert_l-3_training": 54.20740e-3,
    }
    for name, seconds in published_s.items():
        path = folder / f"{name}.json"
        if not path.exists():
            continue
        graph = load_dnn_partitioning(path)
        split = split_graph(graph)
        assert assignment_problems(graph, split.assignment) == []
        assert split.max_load_s <= seconds + 1e-8
        assert split.gap < 0.01
