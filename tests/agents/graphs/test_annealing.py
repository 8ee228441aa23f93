"""Earliest finish and annealing on graphs: never worse than the start, honest about memory."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.graphs.annealing import anneal_from_starts, anneal_graph, anneal_packed_graph
from heterps_agents.graphs.earliest_finish import simple_placement
from heterps_agents.interface.planner import Budget
from heterps_envs.graphs.earliest_finish import upward_ranks
from heterps_envs.graphs.problem import GraphTables, pack_graphs
from heterps_envs.graphs.simulator import simulate_graph
from heterps_envs.problem_sets.graphs import generate_graphs
from tests.envs.small_graphs import earliest_finish


def step_time_s(tables: GraphTables, devices: object) -> float:
    return simulate_graph(tables, np.asarray(devices, np.int16)).step_time_s


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_annealing_is_never_worse_than_its_start_and_tells_the_truth(seed: int) -> None:
    tables = generate_graphs(1, seed, nodes=(4, 30))[0]
    start = earliest_finish(tables)
    assert start is not None
    budget = Budget(evaluations=500)
    problems = pack_graphs([tables], max_nodes=40, max_devices=8)
    best, claimed_s = anneal_packed_graph(problems, 0, start, budget, seed)
    assert budget.evaluations_used == 500
    assert claimed_s == pytest.approx(step_time_s(tables, best), rel=1e-12)
    assert claimed_s <= step_time_s(tables, start)


def test_annealing_finds_the_optimum_of_small_problems() -> None:
    for seed in range(4):
        tables = generate_graphs(1, seed, nodes=(6, 6), devices=(3, 3))[0]
        placements = itertools.product(range(3), repeat=6)
        optimum_s = min(step_time_s(tables, devices) for devices in placements)
        found = anneal_graph(tables, Budget(evaluations=4000), seed)
        assert found is not None
        assert step_time_s(tables, found) == pytest.approx(optimum_s)


def test_annealing_mends_a_start_that_exceeds_memory_or_lacks_kernels() -> None:
    tables = generate_graphs(1, seed=3, nodes=(20, 20), devices=(4, 4))[0]
    forward_s = tables.forward_s.copy()
    forward_s[::2, 0] = np.inf
    tables = dataclasses.replace(tables, forward_s=forward_s)
    start = np.zeros(20, np.int16)
    assert step_time_s(tables, start) == np.inf
    found = anneal_graph(tables, Budget(evaluations=5000), seed=0, start=start)
    assert found is not None
    assert np.isfinite(step_time_s(tables, found))


def test_what_fits_nowhere_together_has_no_placement() -> None:
    tables = generate_graphs(1, seed=3, nodes=(20, 20), devices=(3, 3))[0]
    largest = np.full(3, tables.memory_bytes.max())
    crowded = dataclasses.replace(tables, device_memory_bytes=largest)
    assert earliest_finish(crowded) is None
    assert anneal_graph(crowded, Budget(evaluations=300), seed=0) is None


def test_equal_seeds_give_equal_placements() -> None:
    tables = generate_graphs(1, seed=8)[0]
    found = [anneal_graph(tables, Budget(evaluations=2000), seed) for seed in (1, 1)]
    np.testing.assert_array_equal(found[0], found[1])


def test_annealing_keeps_to_a_limit_in_seconds() -> None:
    tables = generate_graphs(1, seed=8)[0]
    budget = Budget(seconds=0.05)
    anneal_graph(tables, budget, seed=0)
    assert budget.is_exhausted


def test_the_earliest_finish_is_that_of_a_search_over_each_single_step() -> None:
    tables = generate_graphs(1, seed=12, nodes=(12, 12), devices=(3, 3))[0]
    tables = dataclasses.replace(
        tables,
        forward_s=np.where(np.isfinite(tables.forward_s), tables.forward_s, 1e3),
        device_memory_bytes=np.full(3, tables.memory_bytes.sum()),
    )
    found = earliest_finish(tables)
    assert found is not None
    for node in range(12):
        ends = []
        for device in range(3):
            trial = found.copy()
            trial[node] = device
            ends.append(simulate_graph(tables, trial).finish_s[0, node])
        assert found[node] == int(np.argmin(ends))


def test_upward_ranks_fall_along_every_edge_and_order_a_placement() -> None:
    tables = generate_graphs(1, seed=5)[0]
    ranks = np.zeros(tables.num_nodes)
    upward_ranks(pack_graphs([tables]), 0, ranks)
    assert (ranks[tables.producers] > ranks[tables.consumer_of_edge]).all()
    found = earliest_finish(tables, by_rank=True)
    assert found is not None
    assert np.isfinite(step_time_s(tables, found))


def test_the_simple_placement_is_the_best_of_the_rules_that_fits() -> None:
    for seed in range(10):
        tables = generate_graphs(1, seed, nodes=(4, 12))[0]
        problems, budget = (
            pack_graphs([tables], max_nodes=20, max_devices=8),
            Budget(evaluations=50),
        )
        devices = simple_placement(problems, 0, budget)
        assert budget.evaluations_used == tables.num_devices + 2
        rules = [earliest_finish(tables), earliest_finish(tables, by_rank=True)]
        alone = [np.full(tables.num_nodes, device) for device in range(tables.num_devices)]
        best_s = min(step_time_s(tables, rule) for rule in (*rules, *alone) if rule is not None)
        assert step_time_s(tables, devices) == best_s


def test_several_starts_keep_the_best_of_all_and_the_evaluations_of_one() -> None:
    tables = generate_graphs(1, seed=21)[0]
    problems = pack_graphs([tables])
    rng = np.random.default_rng(0)
    runs = np.isfinite(tables.forward_s)
    poor = [(rng.random(runs.shape) * runs).argmax(axis=1).astype(np.int16) for _ in range(2)]
    good = anneal_graph(tables, Budget(evaluations=20_000), seed=1)
    assert good is not None
    budget = Budget(evaluations=7000)
    best, claimed_s = anneal_from_starts(problems, 0, [*poor, good], budget, seed=0)
    assert budget.evaluations_used == 7000
    assert claimed_s == pytest.approx(step_time_s(tables, best), rel=1e-12)
    assert claimed_s <= step_time_s(tables, good)


def test_several_starts_share_a_limit_in_seconds() -> None:
    tables = generate_graphs(1, seed=22)[0]
    problems = pack_graphs([tables])
    start = simple_placement(problems, 0)
    anneal_from_starts(problems, 0, [start] * 3, Budget(evaluations=100), seed=0)
    budget = Budget(seconds=0.1)
    best, claimed_s = anneal_from_starts(problems, 0, [start] * 3, budget, seed=0)
    assert budget.is_exhausted
    assert claimed_s == pytest.approx(step_time_s(tables, best), rel=1e-12)
    assert claimed_s <= step_time_s(tables, start)


def test_nodes_make_room_where_only_exchanges_fit() -> None:
    """Two devices with room for half of the nodes each; the first half belongs on the second."""
    nodes = 12
    seconds = np.ones((nodes, 2))
    seconds[: nodes // 2, 0] = seconds[nodes // 2 :, 1] = 10.0
    link = np.array([[0.0, 1e-9], [1e-9, 0.0]])
    tables = GraphTables(
        forward_s=seconds,
        backward_s=2 * seconds,
        memory_bytes=np.ones(nodes),
        output_bytes=np.ones(nodes),
        gradient_bytes=np.ones(nodes),
        producer_start=np.arange(nodes + 1).clip(1) - 1,
        producers=np.arange(nodes - 1),
        device_memory_bytes=np.full(2, nodes / 2),
        latency_s=link,
        inverse_bandwidth_s_per_byte=link,
        channel=np.array([[0, 0], [1, 1]]),
    )
    start = np.repeat(np.array([0, 1], np.int16), nodes // 2)
    found = anneal_graph(tables, Budget(evaluations=3000), seed=0, start=start)
    assert found is not None
    np.testing.assert_array_equal(found, 1 - start)
