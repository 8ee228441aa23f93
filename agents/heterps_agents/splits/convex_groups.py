"""What a contiguous split of an operator graph moves as one: groups of nodes, and nets.

Nodes of one colour class share a device, so they are one group. The groups of a device must be
convex: no path of the forward pass leaves the device and comes back. A backward node follows its
class; a class without forward nodes takes the place that its backward edges, turned round, give it
(as in the published program). Groups on a circle cannot be told apart by a convex split and become
one.

A net is a node's output: the group of the producer and those of its consumers. A device pays the
net's seconds when it holds some of these groups and not all, whichever way the bytes go, so nets of
equal groups are one.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats, Integers
from heterps_envs.graphs.operators import GraphArrays


class ConvexGroups(NamedTuple):
    """Groups in an execution order, depth first.

    Attributes:
        accelerator_s: (G,) seconds; what cannot run on an accelerator counts as 0.
        cpu_s: (G,) seconds; what cannot run on a CPU counts as 0.
        memory_bytes: (G,).
        only_cpu: (G,) 1 where a node of the group runs on no accelerator.
        only_accelerator: (G,) 1 where a node of the group runs on no CPU.
        edges: (E, 2) distinct pairs (earlier group, later group).
        net_s: (M,) seconds of each net.
        net_start: (M + 1,) where the net's groups start in `net_group`.
        net_group: Groups of the nets, one net after another.
        group_of_node: (N,).
        memory_moved_bytes: Memory of the groups that were joined to a neighbour (`_join_idle`):
            such a group costs nothing there, unless memory is short.
    """

    accelerator_s: Floats
    cpu_s: Floats
    memory_bytes: Floats
    only_cpu: Integers
    only_accelerator: Integers
    edges: Integers
    net_s: Floats
    net_start: Integers
    net_group: Integers
    group_of_node: Integers
    memory_moved_bytes: float


def convex_groups(arrays: GraphArrays, join_idle: bool = True) -> ConvexGroups:
    """The groups of a graph.

    Args:
        arrays: The graph.
        join_idle: Join groups without work to a neighbour where only memory could object.

    Raises:
        HeterpsError: A forward node reads the output of a backward node.
    """
    pairs = _precedence(arrays)
    component = _circles(int(arrays.group.max()) + 1, pairs)
    group = component[arrays.group]
    edges = _distinct(component[pairs])
    joined, nets, moved = _join_idle(arrays, group, edges, join_idle)
    group = joined[group]
    edges = _distinct(joined[edges])
    number = _depth_first(int(group.max()) + 1, edges)
    renamed = {tuple(sorted(int(number[joined[pin]]) for pin in net)): s for net, s in nets.items()}
    return _assemble(arrays, number[group], number[edges], renamed, moved)


def _precedence(arrays: GraphArrays) -> Integers:
    """(E, 2) pairs of colour groups that the forward pass orders."""
    producers, consumers, backward = arrays.producers, arrays.consumers, arrays.is_backward
    if np.any(backward[producers] & ~backward[consumers]):
        raise HeterpsError("the graph has an edge from a backward node to a forward node")
    group = arrays.group
    has_forward = np.zeros(int(group.max()) + 1, dtype=bool)
    has_forward[group[~backward]] = True
    forward = ~backward[consumers]
    orphan = backward[producers] & ~(has_forward[group[producers]] & has_forward[group[consumers]])
    pairs = np.concatenate(
        [
            np.stack([producers[forward], consumers[forward]], axis=1),
            np.stack([consumers[orphan], producers[orphan]], axis=1),
        ]
    )
    return np.asarray(group[pairs], np.int64)


def _circles(count: int, pairs: Integers) -> Integers:
    """(count,) number of each group after those on one circle became one."""
    matrix = coo_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(count, count))
    _, component = connected_components(matrix, directed=True, connection="strong")
    numbers: Integers = np.asarray(component, dtype=np.int64)
    return numbers


def _distinct(pairs: Integers) -> Integers:
    """Distinct rows without those that lead from a group to itself."""
    width = int(pairs.max(initial=0)) + 1
    keys = np.unique((pairs[:, 0] * width + pairs[:, 1])[pairs[:, 0] != pairs[:, 1]])
    ends: Integers = np.stack([keys // width, keys % width], axis=1)
    return ends


def _join_idle(
    arrays: GraphArrays, group: Integers, edges: Integers, join_idle: bool
) -> tuple[Integers, dict[frozenset[int], float], float]:
    """Joins groups without work to a neighbour where that cannot raise any device's load.

    Take a group without work whose only producer (or only consumer) is `m`. Moved to the device of
    `m`, where a convex split may always put it, it makes that device pay at most its nets that `m`
    is not in, and spares it the nets of just the two; its old device likewise. So it may stay with
    `m` for good where the latter cost no less. Only memory may object.

    Returns:
        The new group of each group (numbers without holes), the nets that are left (of old
        numbers, one for each new group), and the bytes that were moved so.
    """
    count = int(group.max()) + 1
    state = _Joining(count, edges, _nets(arrays, group))
    works = np.bincount(group, arrays.accelerator_s + arrays.cpu_s, minlength=count) > 0
    memory = np.bincount(group, arrays.memory_bytes, minlength=count)
    into = np.arange(count)
    moved = 0.0
    waiting = [index for index in range(count) if join_idle and not works[index]]
    while waiting:
        idle = waiting.pop()
        target = state.neighbour_to_join(idle)
        if into[idle] != idle or target is None:
            continue
        waiting.extend(near for near in state.join(idle, target) if not works[near])
        into[into == idle] = target
        moved += memory[idle]
        memory[target] += memory[idle]
    _, dense = np.unique(into, return_inverse=True)
    return dense.astype(np.int64), state.nets, moved


class _Joining:
    """Producers, consumers and nets of groups while some of them are joined."""

    def __init__(self, count: int, edges: Integers, nets: dict[tuple[int, ...], float]) -> None:
        self.producers: list[set[int]] = [set() for _ in range(count)]
        self.consumers: list[set[int]] = [set() for _ in range(count)]
        for producer, consumer in edges.tolist():
            self.consumers[producer].add(consumer)
            self.producers[consumer].add(producer)
        self.nets = {frozenset(net): seconds for net, seconds in nets.items()}
        self.nets_of: list[set[frozenset[int]]] = [set() for _ in range(count)]
        for net in self.nets:
            for pin in net:
                self.nets_of[pin].add(net)

    def neighbour_to_join(self, idle: int) -> int | None:
        """A neighbour on whose device the group is never worse, None if that is not sure."""
        for near in (self.producers[idle], self.consumers[idle]):
            if len(near) == 1:
                (target,) = near
                spared = self.nets.get(frozenset((idle, target)), 0.0)
                added = sum(self.nets[net] for net in self.nets_of[idle] if target not in net)
                if added <= spared:
                    return target
        return None

    def join(self, idle: int, target: int) -> list[int]:
        """Makes `idle` a part of `target`; returns the groups around, which may join now."""
        for near, back in ((self.producers, self.consumers), (self.consumers, self.producers)):
            for other in near[idle]:
                back[other].discard(idle)
                if other != target:
                    back[other].add(target)
                    near[target].add(other)
            near[idle] = set()
        around = {target, *self.producers[target], *self.consumers[target]}
        for net in list(self.nets_of[idle]):
            seconds = self.nets.pop(net)
            for pin in net:
                self.nets_of[pin].discard(net)
            moved = (net - {idle}) | {target}
            if len(moved) > 1:
                self.nets[moved] = self.nets.get(moved, 0.0) + seconds
                for pin in moved:
                    self.nets_of[pin].add(moved)
        return sorted(around)


def _depth_first(count: int, edges: Integers) -> Integers:
    """(count,) place of each group in an execution order that finishes a branch before the next."""
    consumers: list[list[int]] = [[] for _ in range(count)]
    waits_for = [0] * count
    for producer, consumer in edges.tolist():
        consumers[producer].append(consumer)
        waits_for[consumer] += 1
    ready = [index for index in range(count) if waits_for[index] == 0]
    number = np.zeros(count, dtype=np.int64)
    for place in range(count):
        index = ready.pop()
        number[index] = place
        for consumer in consumers[index]:
            waits_for[consumer] -= 1
            if waits_for[consumer] == 0:
                ready.append(consumer)
    return number


def _assemble(
    arrays: GraphArrays,
    group: Integers,
    edges: Integers,
    nets: dict[tuple[int, ...], float],
    moved: float,
) -> ConvexGroups:
    """Sums over the nodes of each group, and the nets as arrays."""
    count = int(group.max()) + 1

    def total(values: Floats) -> Floats:
        finite = np.where(np.isfinite(values), values, 0.0)
        return np.bincount(group, finite, minlength=count).astype(np.float64)

    def any_infinite(values: Floats) -> Integers:
        return (np.bincount(group, ~np.isfinite(values), minlength=count) > 0).astype(np.int64)

    sizes = np.array([0, *map(len, nets)], dtype=np.int64)
    return ConvexGroups(
        accelerator_s=total(arrays.accelerator_s),
        cpu_s=total(arrays.cpu_s),
        memory_bytes=total(arrays.memory_bytes),
        only_cpu=any_infinite(arrays.accelerator_s),
        only_accelerator=any_infinite(arrays.cpu_s),
        edges=edges[np.lexsort((edges[:, 1], edges[:, 0]))],
        net_s=np.array(list(nets.values()), dtype=float),
        net_start=np.cumsum(sizes),
        net_group=np.array([pin for net in nets for pin in net], dtype=np.int64),
        group_of_node=group,
        memory_moved_bytes=moved,
    )


def _nets(arrays: GraphArrays, group: Integers) -> dict[tuple[int, ...], float]:
    """Seconds of each net by its groups, in order; nets inside one group are left out."""
    count = int(group.max()) + 1
    paid = arrays.communication_s[arrays.producers] > 0
    producers, consumers = arrays.producers[paid], arrays.consumers[paid]
    keys = np.unique(
        np.concatenate([producers * count + group[producers], producers * count + group[consumers]])
    )
    bounds = [*np.flatnonzero(np.diff(keys // count, prepend=-1)), len(keys)]
    nets: dict[tuple[int, ...], float] = {}
    members = (keys % count).tolist()
    for start, end in pairwise(bounds):
        if end - start > 1:
            pins = tuple(members[start:end])
            nets[pins] = nets.get(pins, 0.0) + float(arrays.communication_s[keys[start] // count])
    return nets
