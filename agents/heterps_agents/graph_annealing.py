"""Simulated annealing of graph placements under the graph simulator.

A step moves one node to another device (more often to that of a neighbour in the graph), moves it
with some of the nodes that it reads one after another (a piece of a chain, so that no new transfer
appears inside), moves those nodes of a device that lie in a random range of the order to another
device, or lets two nodes swap their devices. Worse placements are accepted with the probability
exp(-log(cost ratio) / temperature) (Kirkpatrick, Gelatt and Vecchi, 1983). Placements that exceed
memory cost more the more they do. Where other placements are known, samples of a policy for
example, a step may also take over a piece of one of them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps_agents.chunks import chunks
from heterps_agents.earliest_finish import simple_placement
from heterps_agents.planner import Budget
from heterps_envs.graph_problem import GraphProblems, GraphTables, Placement, pack_graphs
from heterps_envs.graph_simulator import empty_row, overflow_of, step_time_of

DEFAULT_EVALUATIONS = 30_000
# Of a start from a simple rule, and of one that is good already; for graphs of up to `_USUAL_NODES`
# nodes. In larger ones a single node matters less, and so must the temperature.
START_TEMPERATURE, POLISH_TEMPERATURE = 0.02, 0.01
_USUAL_NODES, _COOLING = 32, 1.5
# Shares of the moves; the rest swaps.
_SINGLE, _CHAIN, _RANGE = 0.3, 0.45, 0.1
_LONGEST_CHAIN = 6
# Where there are other placements: how often a piece of one of them is taken over, at most so long.
_RECOMBINATION, _LONGEST_PIECE = 0.25, 12
# So often a node goes to the device of a neighbour in the graph, if there is another one.
_TO_NEIGHBOUR = 0.4


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
    best, state = current.copy(), empty_row(problems)
    known = np.zeros((0, nodes), np.int16) if others is None else others
    costs = np.full(2, placement_cost(problems, row, current, state)[0])
    temperature *= min(1.0, _USUAL_NODES / nodes) ** _COOLING
    for chunk in chunks(budget, DEFAULT_EVALUATIONS, seed, max_evaluations):
        _anneal(
            problems, row, chunk.evaluations, chunk.rng,
            temperature * (1 - chunk.start), temperature * (1 - chunk.stop),
            able, num_able, current, best, costs, state, known,
        )  # fmt: skip
    fits = overflow_of(problems, row, best, state.free_s) == 0
    return best[:nodes], float(costs[1]) if fits else math.inf


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


@njit(cache=True, error_model="numpy")
def _anneal(
    p: Any,
    z: int,
    evaluations: int,
    rng: Any,
    start_temperature: float,
    stop_temperature: float,
    able: Any,
    num_able: Any,
    current: Any,
    best: Any,
    costs: Any,
    state: Any,
    others: Any,
) -> None:
    """Goes on from (current, costs[0]); keeps the best in (best, costs[1])."""
    nodes = p.num_nodes[z]
    trial = current.copy()
    best_fits = overflow_of(p, z, best, state.free_s) == 0.0
    for step in range(evaluations):
        done = step / evaluations
        temperature = start_temperature * (1.0 - done) + stop_temperature * done + 1e-9
        trial[:nodes] = current[:nodes]
        if len(others) > 0 and rng.random() < _RECOMBINATION:
            _take_piece(nodes, rng, others, trial)
        else:
            move_nodes(p, z, rng, able, num_able, trial)
        cost, fits = placement_cost(p, z, trial, state)
        if cost > costs[0] and rng.random() >= math.exp(-math.log(cost / costs[0]) / temperature):
            continue
        current[:nodes] = trial[:nodes]
        costs[0] = cost
        # One that fits is better than any that does not, however short its step.
        if (cost < costs[1] and fits == best_fits) or (fits and not best_fits):
            best[:nodes] = trial[:nodes]
            costs[1], best_fits = cost, fits


@njit(cache=True, error_model="numpy")
def _runs_on(p: Any, z: int, node: int, device: int) -> bool:
    return p.forward_s[z, node, device] < np.inf  # type: ignore[no-any-return]


@njit(cache=True, error_model="numpy")
def _target(p: Any, z: int, rng: Any, able: Any, num_able: Any, node: int, devices: Any) -> int:
    """Where a node may go: to a neighbour in the graph, or anywhere."""
    if rng.random() < _TO_NEIGHBOUR:
        first, read = p.producer_start[z, node], p.consumer_start[z, node]
        reads, readers = p.producer_start[z, node + 1] - first, p.consumer_start[z, node + 1] - read
        index = int(rng.random() * (reads + readers))
        if index < reads:
            device = devices[p.producers[z, first + index]]
        elif index < reads + readers:
            device = devices[p.consumers[z, read + index - reads]]
        else:
            device = devices[node]
        if _runs_on(p, z, node, device) and device != devices[node]:
            return device  # type: ignore[no-any-return]
    return able[node, int(rng.random() * num_able[node])]  # type: ignore[no-any-return]


@njit(cache=True, error_model="numpy")
def move_nodes(p: Any, z: int, rng: Any, able: Any, num_able: Any, devices: Any) -> None:
    """Changes a placement in one random way, in place."""
    node, choice = int(rng.random() * p.num_nodes[z]), rng.random()
    device = _target(p, z, rng, able, num_able, node, devices)
    if choice < _SINGLE:
        devices[node] = device
    elif choice < _SINGLE + _CHAIN:
        devices[node] = device
        for _ in range(1 + int(rng.random() * (_LONGEST_CHAIN - 1))):
            first, stop = p.producer_start[z, node], p.producer_start[z, node + 1]
            if first == stop:
                break
            node = p.producers[z, first + int(rng.random() * (stop - first))]
            if _runs_on(p, z, node, device):
                devices[node] = device
    elif choice < _SINGLE + _CHAIN + _RANGE:
        home, other = devices[node], int(rng.random() * p.num_nodes[z])
        for member in range(min(node, other), max(node, other) + 1):
            if devices[member] == home and _runs_on(p, z, member, device):
                devices[member] = device
    else:
        other = int(rng.random() * p.num_nodes[z])
        mine, others = devices[node], devices[other]
        if _runs_on(p, z, node, others) and _runs_on(p, z, other, mine):
            devices[node], devices[other] = others, mine


@njit(cache=True, error_model="numpy")
def _take_piece(nodes: int, rng: Any, others: Any, devices: Any) -> None:
    """Takes over some nodes that follow each other from another placement; short pieces prevail."""
    other, first = int(rng.random() * len(others)), int(rng.random() * nodes)
    length = 1 + int(_LONGEST_PIECE * rng.random() ** 2)
    for node in range(first, min(nodes, first + length)):
        devices[node] = others[other, node]
