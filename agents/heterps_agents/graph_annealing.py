"""Simulated annealing of graph placements under the graph simulator.

A step changes the placement in one of the ways of `heterps_agents.graph_moves`. Worse placements
are accepted with the probability exp(-log(cost ratio) / temperature) (Kirkpatrick, Gelatt and
Vecchi, 1983). Placements that exceed memory cost more the more they do. Where other placements are
known, samples of a policy for example, a step may also take over a piece of one of them.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps_agents.chunks import chunks
from heterps_agents.earliest_finish import simple_placement
from heterps_agents.graph_moves import move_nodes, take_piece
from heterps_agents.planner import Budget
from heterps_envs.graph_problem import GraphProblems, GraphTables, Placement, pack_graphs
from heterps_envs.graph_resimulation import (
    ROUNDING,
    Blocks,
    empty_blocks,
    keep_placement,
    step_time_within,
)
from heterps_envs.graph_simulator import empty_row, one_graph, overflow_of, step_time_of
from heterps_envs.uncounted import uncounted

DEFAULT_EVALUATIONS = 30_000
# Of a start from a simple rule, and of one that is good already; for graphs of up to `_USUAL_NODES`
# nodes. In larger ones a single node matters less, and so must the temperature.
START_TEMPERATURE, POLISH_TEMPERATURE = 0.02, 0.01
_USUAL_NODES, _COOLING = 32, 1.5
# Where there are other placements: how often a piece of one of them is taken over.
_RECOMBINATION = 0.25


def anneal_graph(
    tables: GraphTables,
    budget: Budget,
    seed: int,
    *,
    start: Placement | None = None,
    temperature: float = START_TEMPERATURE,
    max_evaluations: int | None = None,
) -> Placement | None:
    """The best placement seen by simulated annealing; never a worse one than the start.

    Args:
        tables: The problem.
        budget: What may be spent.
        seed: Equal seeds give equal placements, unless a limit in seconds ends the search.
        start: (V,) to begin with; it need not fit. By default the best
            simple placement (`heterps_agents.earliest_finish`).
        temperature: At the start, of a graph of up to 32 nodes; of V nodes (32 / V) ** 1.5 of it.
            It falls linearly to zero. 0.02 accepts 1.02 times the cost with a probability of 1 / e.
        max_evaluations: Stop there even if the budget allows more. Without this and any limit in
            the budget, `DEFAULT_EVALUATIONS`.

    Returns:
        (V,) int16; None if nothing seen fits.

    Raises:
        HeterpsError: A node can run on no device.
    """
    problems = pack_graphs([tables])
    if start is None:
        start = simple_placement(problems, 0, budget)
    best, cost = anneal_packed_graph(problems, 0, start, budget, seed, temperature, max_evaluations)
    return best if math.isfinite(cost) else None


def anneal_packed_graph(
    problems: GraphProblems,
    row: int,
    start: Placement,
    budget: Budget,
    seed: int,
    temperature: float = START_TEMPERATURE,
    max_evaluations: int | None = None,
    others: Placement | None = None,
) -> tuple[Placement, float]:
    """The same on one row of packed problems.

    Args:
        problems: Packed problems.
        row: Which one.
        start: As for `anneal_graph`.
        budget: The same.
        seed: The same.
        temperature: The same.
        max_evaluations: The same.
        others: (K, V) complete placements, every node on a device that can run it, of which pieces
            are taken over.

    Returns:
        (V,) int16 of the best placement seen, and its step time; inf if nothing seen fits.
    """
    nodes = int(problems.num_nodes[row])
    able, num_able = able_devices(problems, row)
    current = np.zeros(problems.max_nodes, np.int16)
    current[:nodes] = start[:nodes]
    repair(current[:nodes], able, num_able)
    search = _started(problems, row, current)
    known = np.zeros((0, nodes), np.int16) if others is None else others
    temperature *= min(1.0, _USUAL_NODES / nodes) ** _COOLING
    for chunk in chunks(budget, DEFAULT_EVALUATIONS, seed, max_evaluations):
        _anneal(
            problems, row, chunk.evaluations, chunk.rng,
            temperature * (1 - chunk.start), temperature * (1 - chunk.stop),
            able, num_able, search, known,
        )  # fmt: skip
    fits = overflow_of(problems, row, search.best, search.scratch) == 0
    return search.best[:nodes], float(search.costs[1]) if fits else math.inf


class _Search(NamedTuple):
    """What annealing remembers.

    Attributes:
        current, trial, best: (V,) placements.
        moved: (V,) the nodes on which `trial` and `current` differ.
        costs: (2,) of `current` and `best`.
        memory_bytes: (D,) held by each device in `trial`, up to rounding.
        scratch: (D,).
        blocks: Of `current`.
    """

    current: Placement
    trial: Placement
    best: Placement
    moved: NDArray[np.int64]
    costs: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    scratch: NDArray[np.float64]
    blocks: Blocks


def _started(problems: GraphProblems, row: int, start: Placement) -> _Search:
    devices = problems.max_devices
    cost = placement_cost(problems, row, start, empty_row(problems))[0]
    return _Search(
        start, start.copy(), start.copy(), np.zeros(problems.max_nodes, np.int64),
        np.full(2, cost), np.zeros(devices), np.zeros(devices), empty_blocks(problems, row),
    )  # fmt: skip


def able_devices(problems: GraphProblems, row: int) -> tuple[NDArray[np.int16], NDArray[np.int64]]:
    """(V, D) the devices that can run each node, in front, and (V,) how many there are."""
    nodes, devices = problems.num_nodes[row], problems.num_devices[row]
    runs = np.isfinite(problems.forward_s[row, :nodes, :devices])
    runs &= problems.memory_bytes[row, :nodes, None] <= problems.device_memory_bytes[row, :devices]
    return np.argsort(~runs, axis=1, kind="stable").astype(np.int16), runs.sum(axis=1)


def repair(devices: Placement, able: NDArray[np.int16], num_able: NDArray[np.int64]) -> None:
    """Moves nodes that their device cannot run to one that can, in place."""
    for node, device in enumerate(devices):
        if device not in able[node, : num_able[node]]:
            devices[node] = able[node, 0]


@njit(cache=True, error_model="numpy")
def placement_cost(p: Any, z: int, devices: Any, state: Any) -> tuple[float, bool]:
    """What the search minimises, as `heterps_envs.graph_simulator.graph_cost`; whether it fits."""
    step_time_s = step_time_of(p, z, devices, state)
    overflow = overflow_of(p, z, devices, state.free_s)
    return (step_time_s, True) if overflow == 0.0 else (step_time_s * (2.0 + overflow), False)


@uncounted
def _anneal(
    p: Any,
    z: int,
    evaluations: int,
    rng: Any,
    start_temperature: float,
    stop_temperature: float,
    able: Any,
    num_able: Any,
    search: Any,
    others: Any,
) -> None:
    """Goes on from `search.current`; keeps the best in `search.best`.

    Whether a worse placement would be accepted is drawn before it is simulated: then the simulation
    can end as soon as it is sure to be worse than that.
    """
    g, nodes = one_graph(p, z), p.num_nodes[z]
    keep_placement(g, search.current, 0, search.blocks)
    current, trial, moved, costs = search.current, search.trial, search.moved, search.costs
    for node in range(nodes):
        trial[node] = current[node]
    fits = overflow_of(p, z, current, search.memory_bytes) == 0.0
    best_fits = overflow_of(p, z, search.best, search.scratch) == 0.0
    for step in range(evaluations):
        done = step / evaluations
        temperature = start_temperature * (1.0 - done) + stop_temperature * done
        if len(others) > 0 and rng.random() < _RECOMBINATION:
            count = take_piece(nodes, rng, others, trial, moved)
        else:
            count = move_nodes(p, z, rng, able, num_able, trial, moved)
        if count == 0:
            continue
        limit = costs[0] * math.exp(-temperature * math.log(1.0 - rng.random()))
        overflow = _overflow_after(p, z, fits, count, search)
        factor = 1.0 if overflow == 0.0 else 2.0 + overflow
        step_time_s = step_time_within(
            g, trial, current, moved, count, limit / factor, search.blocks
        )
        if step_time_s == np.inf:
            for index in range(count):
                node = moved[index]
                search.memory_bytes[trial[node]] -= p.memory_bytes[z, node]
                search.memory_bytes[current[node]] += p.memory_bytes[z, node]
                trial[node] = current[node]
            continue
        first = nodes
        for index in range(count):
            first = min(first, moved[index])
            current[moved[index]] = trial[moved[index]]
        keep_placement(g, current, first, search.blocks)
        costs[0], fits = step_time_s * factor, overflow == 0.0
        # One that fits is better than any that does not, however short its step.
        if (costs[0] < costs[1] and fits == best_fits) or (fits and not best_fits):
            for node in range(nodes):
                search.best[node] = current[node]
            costs[1], best_fits = costs[0], fits


@uncounted
def _overflow_after(p: Any, z: int, fits: bool, count: int, search: Any) -> float:
    """The overflow of `search.trial`; also moves the memory of the nodes that moved."""
    memory_bytes, is_sure = search.memory_bytes, fits
    for index in range(count):
        node = search.moved[index]
        memory_bytes[search.current[node]] -= p.memory_bytes[z, node]
        memory_bytes[search.trial[node]] += p.memory_bytes[z, node]
    for index in range(count):
        device = search.trial[search.moved[index]]
        limit_bytes = p.device_memory_bytes[z, device] * (1.0 - ROUNDING)
        is_sure = is_sure and memory_bytes[device] <= limit_bytes
    # Sums that nodes were added to and taken from are not exact; near the limit they are made anew.
    return 0.0 if is_sure else overflow_of(p, z, search.trial, search.scratch)
