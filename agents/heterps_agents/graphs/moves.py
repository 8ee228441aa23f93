"""Random changes of graph placements, for searches: each tells which nodes it moved.

A change moves one node to another device (more often to that of a neighbour in the graph), moves it
with some of the nodes that it reads one after another (a piece of a chain, so that no new transfer
appears inside), moves those nodes of a device that lie in a random range of the order to another
device, lets two nodes swap their devices, or takes over a piece of another placement.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.compiled import compiled, uncounted_helper

# Shares of the moves; the rest swaps.
_SINGLE, _CHAIN, _RANGE = 0.3, 0.45, 0.1
_LONGEST_CHAIN = 6
# Of another placement at most so much is taken over.
_LONGEST_PIECE = 12
# So often a node goes to the device of a neighbour in the graph, if there is another one.
_TO_NEIGHBOUR = 0.4


@uncounted_helper
def _runs_on(p: Any, z: int, node: int, device: int) -> bool:
    return p.forward_s[z, node, device] < np.inf  # type: ignore[no-any-return]


@compiled(error_model="numpy", inline="always")
def _put(devices: Any, node: int, device: int, moved: Any, count: int) -> int:
    """Puts a node on a device; the number of nodes that moved."""
    if devices[node] == device:
        return count
    devices[node] = device
    moved[count] = node
    return count + 1


@uncounted_helper
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


@uncounted_helper
def move_nodes(p: Any, z: int, rng: Any, able: Any, num_able: Any, devices: Any, moved: Any) -> int:
    """Changes a placement in one random way, in place.

    Args:
        p: `GraphProblems`.
        z: Row of the problem.
        rng: `numpy.random.Generator`.
        able: (V, D) see `heterps_agents.graphs.annealing.able_devices`.
        num_able: (V,) the same.
        devices: (V,) the placement, written to.
        moved: (V,) the nodes whose device changed come first; written to.

    Returns:
        How many these are; 0 if nothing changed.
    """
    node, choice = int(rng.random() * p.num_nodes[z]), rng.random()
    device = _target(p, z, rng, able, num_able, node, devices)
    count = 0
    if choice < _SINGLE:
        count = _put(devices, node, device, moved, count)
    elif choice < _SINGLE + _CHAIN:
        count = _put(devices, node, device, moved, count)
        for _ in range(1 + int(rng.random() * (_LONGEST_CHAIN - 1))):
            first, stop = p.producer_start[z, node], p.producer_start[z, node + 1]
            if first == stop:
                break
            node = p.producers[z, first + int(rng.random() * (stop - first))]
            if _runs_on(p, z, node, device):
                count = _put(devices, node, device, moved, count)
    elif choice < _SINGLE + _CHAIN + _RANGE:
        home, other = devices[node], int(rng.random() * p.num_nodes[z])
        for member in range(min(node, other), max(node, other) + 1):
            if devices[member] == home and _runs_on(p, z, member, device):
                count = _put(devices, member, device, moved, count)
    else:
        other = int(rng.random() * p.num_nodes[z])
        mine, others = devices[node], devices[other]
        if _runs_on(p, z, node, others) and _runs_on(p, z, other, mine):
            count = _put(devices, node, others, moved, count)
            count = _put(devices, other, mine, moved, count)
    return count


@uncounted_helper
def take_piece(nodes: int, rng: Any, others: Any, devices: Any, moved: Any) -> int:
    """Takes over some nodes that follow each other from another placement; short pieces prevail.

    Args:
        nodes: V.
        rng: `numpy.random.Generator`.
        others: (K, V) the other placements.
        devices: (V,) the placement, written to.
        moved: As for `move_nodes`.

    Returns:
        The same.
    """
    other, first = int(rng.random() * len(others)), int(rng.random() * nodes)
    length = 1 + int(_LONGEST_PIECE * rng.random() ** 2)
    count = 0
    for node in range(first, min(nodes, first + length)):
        count = _put(devices, node, others[other, node], moved, count)
    return count
