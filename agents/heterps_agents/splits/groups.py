"""Operator graphs for splits that need not be contiguous: groups of nodes, and the nets they share.

Nodes that must share a device are one group. What a node sends to other groups is a net: its
producer's group, the groups that read it, and its communication seconds. The load of an
accelerator is the seconds of its groups, plus every net that it reads or sends across its border,
which is the objective of `heterps_envs.graphs.operators` once groups replace nodes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from scipy.sparse import csr_matrix
from scipy.sparse.csgraph import connected_components

from heterps_envs.arrays import Floats, Integers
from heterps_envs.graphs.operators import GraphArrays


class GroupGraph(NamedTuple):
    """G groups and R nets. A net's first member is its producer, the others read it.

    Attributes:
        accelerator_s: (G,) seconds on an accelerator; inf where a node of it runs on CPUs only.
        cpu_s: (G,) seconds on a CPU; inf where a node of it runs on accelerators only.
        memory_bytes: (G,) taken on an accelerator.
        net_s: (R,) seconds to send the net, or to receive it.
        member_start: (R + 1,) where a net's members begin in `members`.
        members: Groups, all different within one net.
        net_start: (G + 1,) where a group's nets begin in `nets`.
        nets: Nets that the group sends or reads.
    """

    accelerator_s: Floats
    cpu_s: Floats
    memory_bytes: Floats
    net_s: Floats
    member_start: Integers
    members: Integers
    net_start: Integers
    nets: Integers

    @property
    def num_groups(self) -> int:
        """Number of groups, G."""
        return len(self.accelerator_s)

    @property
    def num_nets(self) -> int:
        """Number of nets, R."""
        return len(self.net_s)

    def net(self, index: int) -> Integers:
        """Members of a net, the producer first."""
        return self.members[self.member_start[index] : self.member_start[index + 1]]


def group_graph(arrays: GraphArrays) -> GroupGraph:
    """Contracts colour classes; nets without seconds, or without readers outside, are left out."""
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for producer, consumer in zip(arrays.producers, arrays.consumers, strict=True):
        if arrays.group[producer] != arrays.group[consumer]:
            readers[int(producer)].add(int(arrays.group[consumer]))
    return _assemble(
        arrays.group,
        (arrays.accelerator_s, arrays.cpu_s, arrays.memory_bytes),
        (
            (float(arrays.communication_s[node]), int(arrays.group[node]), found)
            for node, found in readers.items()
        ),
    )


def merge(graph: GroupGraph, cluster: Integers) -> GroupGraph:
    """The graph whose groups are clusters of groups.

    Args:
        graph: The finer graph.
        cluster: (G,) cluster of each group, numbered from 0.
    """
    nets = []
    for index in range(graph.num_nets):
        producer, *readers = (int(cluster[group]) for group in graph.net(index))
        nets.append((float(graph.net_s[index]), producer, set(readers) - {producer}))
    return _assemble(cluster, (graph.accelerator_s, graph.cpu_s, graph.memory_bytes), nets)


def clusters_over(graph: GroupGraph, limit_s: float) -> Integers:
    """(G,) clusters in which the members of every net of more than `limit_s` are together.

    Args:
        graph: The groups.
        limit_s: Nets of at most these seconds join nothing.
    """
    sizes = np.diff(graph.member_start)
    producers = np.repeat(graph.members[graph.member_start[:-1]], sizes)
    joins = np.repeat(graph.net_s > limit_s, sizes)
    ends = producers[joins], graph.members[joins]
    links = csr_matrix((np.ones(len(ends[0])), ends), shape=(graph.num_groups, graph.num_groups))
    return np.asarray(connected_components(links, directed=False)[1], np.int64)


def _assemble(
    part: Integers, values: Sequence[Floats], nets: Iterable[tuple[float, int, set[int]]]
) -> GroupGraph:
    """Sums values over parts; equal nets become one."""
    size = int(part.max()) + 1
    sums: list[Floats] = [
        np.bincount(part, weights=entry, minlength=size).astype(float) for entry in values
    ]
    seconds: defaultdict[tuple[int, ...], float] = defaultdict(float)
    for net_s, producer, readers in nets:
        if readers and net_s > 0:
            seconds[(producer, *sorted(readers))] += net_s
    sizes = [len(members) for members in seconds]
    members = np.array([group for net in seconds for group in net], dtype=np.int64)
    net_of_member = np.repeat(np.arange(len(sizes)), sizes)
    order = np.argsort(members, kind="stable")
    counts = np.bincount(members, minlength=size)
    return GroupGraph(
        accelerator_s=sums[0],
        cpu_s=sums[1],
        memory_bytes=sums[2],
        net_s=np.array(list(seconds.values())),
        member_start=_starts(sizes),
        members=members,
        net_start=_starts(counts.tolist()),
        nets=net_of_member[order].astype(np.int64),
    )


def _starts(sizes: Sequence[int]) -> Integers:
    return np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
