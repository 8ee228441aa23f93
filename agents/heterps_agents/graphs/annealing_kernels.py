"""One chunk of annealing of a graph placement, compiled; see `heterps_agents.graphs.annealing`."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.graphs.moves import move_nodes, take_piece
from heterps_envs.compiled import ZERO, kernel, uncounted, uncounted_helper
from heterps_envs.graphs.problem import Placement
from heterps_envs.graphs.resimulation import ROUNDING, Blocks, keep_placement, step_time_within
from heterps_envs.graphs.simulator import one_graph, overflow_of, step_time_of

# Where there are other placements: how often a piece of one of them is taken over.
_RECOMBINATION = 0.25
# How often nodes make room where memory does not hold what a step changes, and how many are looked
# at for it.
_MAKES_ROOM, _TRIES_FOR_ROOM = 0.8, 48


class Search(NamedTuple):
    """What annealing of one problem remembers.

    Attributes:
        current, trial, best: (V,) placements.
        moved: (V,) the nodes on which `trial` and `current` differ.
        costs: (2,) of `current` and `best`.
        memory_bytes: (D,) held by each device in `trial`, up to rounding.
        scratch: (D,).
        blocks: Of `current`.
        able: (V, D) devices that can run each node, in front.
        num_able: (V,) how many there are.
    """

    current: Placement
    trial: Placement
    best: Placement
    moved: NDArray[np.int64]
    costs: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    scratch: NDArray[np.float64]
    blocks: Blocks
    able: Placement
    num_able: NDArray[np.int64]


@kernel
def placement_cost(p: Any, z: int, devices: Any, state: Any) -> tuple[float, bool]:
    """What the search minimises, as `heterps_envs.graphs.simulator.graph_cost`; whether it fits."""
    step_time_s = step_time_of(p, z, devices, state)
    overflow = overflow_of(p, z, devices, state.free_s)
    return (step_time_s, True) if overflow == 0.0 else (step_time_s * (2.0 + overflow), False)


@uncounted
def anneal_chunk(
    p: Any,
    z: int,
    evaluations: int,
    rng: Any,
    start_temperature: float,
    stop_temperature: float,
    search: Any,
    others: Any,
) -> None:
    """Goes on from `search.current`; keeps the best in `search.best`.

    Whether a worse placement would be accepted is drawn before it is simulated: then the simulation
    can end as soon as it is sure to be worse than that.
    """
    g, nodes = one_graph(p, z), p.num_nodes[z]
    keep_placement(g, search.current, ZERO, search.blocks)
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
            count = move_nodes(p, z, rng, search.able, search.num_able, trial, moved)
        if count == 0:
            continue
        limit = costs[0] * math.exp(-temperature * math.log(1.0 - rng.random()))
        _move_memory(p, z, ZERO, count, search)
        if fits and rng.random() < _MAKES_ROOM:
            count = _make_room(p, z, rng, count, search)
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


@uncounted_helper
def _move_memory(p: Any, z: int, first: int, stop: int, search: Any) -> None:
    """Moves the memory of the moved nodes from number `first` on."""
    for index in range(first, stop):
        node = search.moved[index]
        search.memory_bytes[search.current[node]] -= p.memory_bytes[z, node]
        search.memory_bytes[search.trial[node]] += p.memory_bytes[z, node]


@uncounted_helper
def _make_room(p: Any, z: int, rng: Any, count: int, search: Any) -> int:
    """Random nodes leave a device that is too full now, for where the last to come was before.

    Where memory is short, single moves lead nowhere: only exchanges fit.
    """
    node = search.moved[count - 1]
    home, device = search.current[node], search.trial[node]
    limit_bytes = p.device_memory_bytes[z, device]
    for _ in range(_TRIES_FOR_ROOM):
        if search.memory_bytes[device] <= limit_bytes:
            break
        node = int(rng.random() * p.num_nodes[z])
        is_there = search.current[node] == device and search.trial[node] == device
        if is_there and p.forward_s[z, node, home] < np.inf:
            search.trial[node] = home
            search.moved[count] = node
            _move_memory(p, z, count, count + 1, search)
            count += 1
    return count


@uncounted_helper
def _overflow_after(p: Any, z: int, fits: bool, count: int, search: Any) -> float:
    """The overflow of `search.trial`."""
    memory_bytes, is_sure = search.memory_bytes, fits
    for index in range(count):
        device = search.trial[search.moved[index]]
        limit_bytes = p.device_memory_bytes[z, device] * (1.0 - ROUNDING)
        is_sure = is_sure and memory_bytes[device] <= limit_bytes
    # Sums that nodes were added to and taken from are not exact; near the limit they are made anew.
    return 0.0 if is_sure else overflow_of(p, z, search.trial, search.scratch)
