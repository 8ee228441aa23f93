"""Local search for splits of operator graphs that need not be contiguous (numba).

Simulated annealing over the assignment of groups to devices. A step moves one group, mostly to the
device of a neighbour, or swaps two groups; only the loads of the two devices change, and only by
the nets of the groups that move. What is minimised is the p-norm of the loads, close to the largest
one, but it also rewards relief of a device that is not the slowest.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from heterps_agents.splits.groups import GroupGraph
from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import checked, checked_helper, compiled

NORM = 24.0
# Relative change of the norm that is accepted with probability 1/e at the start, and at the end.
FIRST_TEMPERATURE, LAST_TEMPERATURE = 2e-2, 2e-5
SWAP_SHARE, STRANGER_SHARE = 0.3, 0.1
RESYNC_EVERY = 4096


class Devices(NamedTuple):
    """Equal accelerators, then equal CPUs.

    Attributes:
        num_accelerators: How many accelerators.
        num_cpus: How many CPUs.
        memory_bytes: Of one accelerator; inf: no limit.
    """

    num_accelerators: int
    num_cpus: int
    memory_bytes: float


def loads_of(graph: GroupGraph, devices: Devices, assignment: Integers) -> Floats:
    """(D,) seconds of every device, accelerators first."""
    loads = np.zeros(devices.num_accelerators + devices.num_cpus)
    memory = np.zeros_like(loads)
    counts = np.zeros((graph.num_nets, len(loads)), np.int32)
    _tally(graph, devices, assignment, loads, memory, counts)
    return loads


def fits(graph: GroupGraph, devices: Devices, assignment: Integers) -> bool:
    """Whether every device can run its groups, in memory and at all."""
    accelerators = assignment < devices.num_accelerators
    held = np.bincount(assignment[accelerators], weights=graph.memory_bytes[accelerators])
    in_memory = len(held) == 0 or held.max() <= devices.memory_bytes
    return bool(in_memory and np.isfinite(loads_of(graph, devices, assignment)).all())


def anneal(
    graph: GroupGraph,
    devices: Devices,
    start: Integers,
    steps: int,
    seed: int,
    first_temperature: float = FIRST_TEMPERATURE,
) -> Integers:
    """The best assignment that annealing from `start` came by; `start` must fit.

    Args:
        graph: The groups.
        devices: What they are put on.
        start: (G,) device of each group.
        steps: Moves and swaps that are tried.
        seed: Of all draws.
        first_temperature: Relative change of the norm that is accepted often at the start.
    """
    best = np.array(start, dtype=np.int64)
    loads = loads_of(graph, devices, best)
    if graph.num_groups > 1 and len(loads) > 1 and loads.max() > 0:
        rng = np.random.default_rng(seed)
        _anneal(graph, devices, best, steps, rng, first_temperature, LAST_TEMPERATURE)
    return best


@checked
def _tally(g: Any, devices: Any, assignment: Any, loads: Any, memory: Any, counts: Any) -> None:
    """Loads, memory, and for every net how many of its members each device has."""
    loads[:] = 0.0
    memory[:] = 0.0
    counts[:] = 0
    accelerators = devices.num_accelerators
    for group in range(len(assignment)):
        device = assignment[group]
        if device < accelerators:
            loads[device] += g.accelerator_s[group]
            memory[device] += g.memory_bytes[group]
        else:
            loads[device] += g.cpu_s[group]
    for net in range(len(g.net_s)):
        first, stop = g.member_start[net], g.member_start[net + 1]
        for position in range(first, stop):
            counts[net, assignment[g.members[position]]] += 1
        for device in range(accelerators):
            if 0 < counts[net, device] < stop - first:
                loads[device] += g.net_s[net]


@compiled(inline="always")
def _border_s(g: Any, group: int, counts: Any, device: int) -> float:
    """What the group adds to the border of a device on which it is not yet."""
    change = 0.0
    for position in range(g.net_start[group], g.net_start[group + 1]):
        net = g.nets[position]
        there = counts[net, device]
        if there == 0:
            change += g.net_s[net]
        elif there + 1 == g.member_start[net + 1] - g.member_start[net]:
            change -= g.net_s[net]
    return change


@compiled(inline="always")
def _count(g: Any, group: int, counts: Any, device: int, by: int) -> None:
    for position in range(g.net_start[group], g.net_start[group + 1]):
        counts[g.nets[position], device] += by


@compiled(inline="always")
def _take(g: Any, group: int, accelerators: int, device: int, counts: Any, loads: Any) -> None:
    """Takes the group off a device."""
    _count(g, group, counts, device, -1)
    if device < accelerators:
        loads[device] -= g.accelerator_s[group] + _border_s(g, group, counts, device)
    else:
        loads[device] -= g.cpu_s[group]


@compiled(inline="always")
def _put(g: Any, group: int, accelerators: int, device: int, counts: Any, loads: Any) -> None:
    """Puts the group on a device."""
    if device < accelerators:
        loads[device] += g.accelerator_s[group] + _border_s(g, group, counts, device)
    else:
        loads[device] += g.cpu_s[group]
    _count(g, group, counts, device, 1)


@compiled(inline="always")
def _can_hold(g: Any, devices: Any, memory: Any, device: int, group: int, gone: float) -> bool:
    if device >= devices.num_accelerators:
        return bool(g.cpu_s[group] < np.inf)
    if not g.accelerator_s[group] < np.inf:
        return False
    return bool(memory[device] - gone + g.memory_bytes[group] <= devices.memory_bytes)


@checked_helper
def _norm(loads: Any, scale: float) -> float:
    total = 0.0
    for load in loads:
        total += (load / scale) ** NORM
    return float(total)


@compiled(inline="always")
def _two(loads: Any, a: int, b: int, scale: float) -> float:
    return float((max(loads[a], 0.0) / scale) ** NORM + (max(loads[b], 0.0) / scale) ** NORM)


@compiled(inline="always")
def _neighbour(g: Any, group: int, rng: Any) -> int:
    first, stop = g.net_start[group], g.net_start[group + 1]
    if first == stop:
        return group
    net = g.nets[first + int(rng.random() * (stop - first))]
    begin, size = g.member_start[net], g.member_start[net + 1] - g.member_start[net]
    return int(g.members[begin + int(rng.random() * size)])


@checked
def _anneal(
    g: Any, devices: Any, best: Any, steps: int, rng: Any, first: float, last: float
) -> None:
    """Anneals in place; see `anneal`."""
    num_groups, accelerators = len(best), devices.num_accelerators
    num_devices = accelerators + devices.num_cpus
    assignment = best.copy()
    loads, memory = np.zeros(num_devices), np.zeros(num_devices)
    counts = np.zeros((len(g.net_s), num_devices), np.int32)
    _tally(g, devices, assignment, loads, memory, counts)
    best_s = loads.max()
    scale, norm = best_s, _norm(loads, best_s)
    cooling = math.log(last / first) / steps
    for step in range(steps):
        if step % RESYNC_EVERY == 0:
            _tally(g, devices, assignment, loads, memory, counts)
            scale = loads.max()
            if scale <= 0.0:
                best[:] = assignment
            if best_s <= 0.0 or scale <= 0.0:
                return
            norm = _norm(loads, scale)
        temperature = first * math.exp(cooling * step)
        group = int(rng.random() * num_groups)
        a = assignment[group]
        other = -1
        if rng.random() < SWAP_SHARE:
            other = int(rng.random() * num_groups)
            b = assignment[other]
        elif rng.random() < STRANGER_SHARE:
            b = int(rng.random() * num_devices)
        else:
            b = assignment[_neighbour(g, group, rng)]
        if a == b or not _can_hold(
            g, devices, memory, b, group, g.memory_bytes[other] if other >= 0 else 0.0
        ):
            continue
        if other >= 0 and not _can_hold(g, devices, memory, a, other, g.memory_bytes[group]):
            continue
        old_a, old_b = loads[a], loads[b]
        before = _two(loads, a, b, scale)
        _take(g, group, accelerators, a, counts, loads)
        if other >= 0:
            _take(g, other, accelerators, b, counts, loads)
            _put(g, other, accelerators, a, counts, loads)
        _put(g, group, accelerators, b, counts, loads)
        changed = norm - before + _two(loads, a, b, scale)
        # p-th root of the ratio: a relative change of about the largest load.
        worse = math.log(max(changed, 1e-300) / max(norm, 1e-300)) / NORM
        if worse <= 0.0 or rng.random() < math.exp(-worse / temperature):
            norm = changed
            assignment[group] = b
            if a < accelerators:
                memory[a] -= g.memory_bytes[group]
            if b < accelerators:
                memory[b] += g.memory_bytes[group]
            if other >= 0:
                assignment[other] = a
                if a < accelerators:
                    memory[a] += g.memory_bytes[other]
                if b < accelerators:
                    memory[b] -= g.memory_bytes[other]
            if worse < 0.0 and loads.max() < best_s * (1 - 1e-12):
                best_s = loads.max()
                best[:] = assignment
        else:
            _count(g, group, counts, b, -1)
            _count(g, group, counts, a, 1)
            if other >= 0:
                _count(g, other, counts, a, -1)
                _count(g, other, counts, b, 1)
            loads[a], loads[b] = old_a, old_b
