"""Simulations that begin late or end early: bit for bit what the whole simulation says."""

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from heterps_envs.graphs.problem import GraphProblems, Placement, pack_graphs
from heterps_envs.graphs.resimulation import Blocks, empty_blocks, keep_placement, step_time_within
from heterps_envs.graphs.simulator import empty_row, one_graph, step_time_of
from heterps_envs.problem_sets.graphs import generate_graphs

MOST_MOVED = 6


def walk(
    p: GraphProblems,
    devices: Placement,
    runs: NDArray[np.bool_],
    steps: int,
    seed: int,
    row: Any,
    blocks: Blocks,
) -> tuple[int, int, int]:
    """How many placements of a random walk were within a limit, beyond it, and judged wrongly."""
    rng, g, found = np.random.default_rng(seed), one_graph(p, 0), [0, 0, 0]
    trial, moved = devices.copy(), np.zeros(MOST_MOVED, np.int64)
    keep_placement(g, devices, 0, blocks)
    kept_s = step_time_of(p, 0, devices, row)
    for _ in range(steps):
        first = int(rng.random() * g.num_nodes)
        count = min(1 + int(rng.random() * MOST_MOVED), int(g.num_nodes) - first)
        moved[:count] = range(first + count - 1, first - 1, -1)
        for node in moved[:count]:
            device = int(rng.random() * g.num_devices)
            trial[node] = device if runs[node, device] else trial[node]
        limit_s = kept_s * (0.98 + 0.07 * rng.random())
        answer_s = step_time_within(g, trial, devices, moved, count, limit_s, blocks)
        exact_s = step_time_of(p, 0, trial, row)
        is_within = exact_s <= limit_s
        found[0 if is_within else 1] += 1
        found[2] += answer_s != (exact_s if is_within else np.inf)
        if is_within:
            devices[moved[:count]] = trial[moved[:count]]
            keep_placement(g, devices, first, blocks)
            kept_s = exact_s
        else:
            trial[moved[:count]] = devices[moved[:count]]
    return found[0], found[1], found[2]


def walked(seed: int, nodes: tuple[int, int], steps: int) -> tuple[int, int, int]:
    tables = generate_graphs(1, seed, nodes=nodes, devices=(1, 7))[0]
    problems = pack_graphs([tables], max_nodes=nodes[1] + 3, max_devices=8)
    runs = np.isfinite(tables.forward_s)
    devices = np.zeros(problems.max_nodes, np.int16)
    devices[: tables.num_nodes] = runs.argmax(axis=1)
    blocks: Blocks = empty_blocks(problems, 0)
    return walk(problems, devices, runs, steps, seed, empty_row(problems), blocks)


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6))
@example(seed=1500)  # one device alone
def test_step_times_within_the_limit_are_exact_to_the_bit_and_no_others_are_told(seed: int) -> None:
    assert walked(seed, (1, 70), 60)[2] == 0


def test_walks_over_large_graphs_see_both_sides_of_the_limit() -> None:
    within, beyond, wrong = walked(11, (180, 200), 2000)
    assert within > 100
    assert beyond > 100
    assert wrong == 0
