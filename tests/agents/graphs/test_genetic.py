"""The genetic search for graphs: never worse than its start, honest about memory, repeatable."""

import dataclasses
import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.graphs.genetic import genetic_graph, take_range
from heterps_agents.interface.planner import Budget
from heterps_envs.graphs.problem import GraphTables
from heterps_envs.graphs.simulator import simulate_graph
from heterps_envs.problem_sets.graphs import generate_graphs
from tests.envs.small_graphs import earliest_finish


def step_time_s(tables: GraphTables, devices: object) -> float:
    return simulate_graph(tables, np.asarray(devices, np.int16)).step_time_s


@pytest.mark.slow
@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 10**6))
def test_it_keeps_to_its_evaluations_and_is_never_worse_than_its_start(seed: int) -> None:
    tables = generate_graphs(1, seed, nodes=(4, 30))[0]
    start = earliest_finish(tables)
    assert start is not None
    budget = Budget(evaluations=500)
    best = genetic_graph(tables, budget, seed, start=start)
    assert budget.evaluations_used == 500
    assert best is not None
    assert step_time_s(tables, best) <= step_time_s(tables, start)


def test_it_finds_the_optimum_of_small_problems() -> None:
    for seed in range(4):
        tables = generate_graphs(1, seed, nodes=(6, 6), devices=(3, 3))[0]
        placements = itertools.product(range(3), repeat=6)
        optimum_s = min(step_time_s(tables, devices) for devices in placements)
        found = genetic_graph(tables, Budget(evaluations=4000), seed)
        assert found is not None
        assert step_time_s(tables, found) == pytest.approx(optimum_s)


def test_it_mends_a_start_that_lacks_kernels() -> None:
    tables = generate_graphs(1, seed=3, nodes=(20, 20), devices=(4, 4))[0]
    forward_s = tables.forward_s.copy()
    forward_s[::2, 0] = np.inf
    tables = dataclasses.replace(tables, forward_s=forward_s)
    found = genetic_graph(tables, Budget(evaluations=5000), seed=0, start=np.zeros(20, np.int16))
    assert found is not None
    assert np.isfinite(step_time_s(tables, found))


def test_what_fits_nowhere_together_has_no_placement() -> None:
    tables = generate_graphs(1, seed=3, nodes=(20, 20), devices=(3, 3))[0]
    largest = np.full(3, tables.memory_bytes.max())
    crowded = dataclasses.replace(tables, device_memory_bytes=largest)
    assert genetic_graph(crowded, Budget(evaluations=300), seed=0) is None


def test_equal_seeds_give_equal_placements() -> None:
    tables = generate_graphs(1, seed=8)[0]
    found = [genetic_graph(tables, Budget(evaluations=2000), seed) for seed in (1, 1)]
    np.testing.assert_array_equal(found[0], found[1])


def test_it_keeps_to_a_limit_in_seconds() -> None:
    tables = generate_graphs(1, seed=8)[0]
    budget = Budget(seconds=0.05)
    genetic_graph(tables, budget, seed=0)
    assert budget.is_exhausted


@given(seed=st.integers(0, 1000), nodes=st.integers(1, 12))
def test_a_child_has_one_range_of_its_father(seed: int, nodes: int) -> None:
    child, father = np.zeros(nodes, np.int16), np.ones(nodes, np.int16)
    take_range(np.random.default_rng(seed), nodes, father, child)
    assert (np.diff(child, prepend=0, append=0) != 0).sum() == 2
