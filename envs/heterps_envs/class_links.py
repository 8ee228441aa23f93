"""Links between the devices of any two device classes, and the rings inside a class, as arrays.

Which links there are follows from the nodes alone, and on a node whose links have directions from
the order of its devices: so a cluster of thousands of devices is looked at node by node.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.cluster import NO_LINK
from heterps_configs.documents.numbers import MOST_LATENCY_S
from heterps_envs.arrays import Flags, Floats, Integers
from heterps_envs.cost_tables import RingLinks
from heterps_envs.node_links import NodeLinks


class _Places(NamedTuple):
    """Of T classes on N nodes.

    Attributes:
        first: (T, N) a class's first device of each node, by its index; one too many for none.
        last: (T, N) its last one; -1 for none.
    """

    first: Integers
    last: Integers

    @classmethod
    def of(cls, links: NodeLinks, classes: Sequence[Integers]) -> _Places:
        shape = len(classes), len(links.latency_s)
        found = cls(np.full(shape, len(links.node_of)), np.full(shape, -1))
        for row, devices in enumerate(classes):
            nodes = links.node_of[devices]
            np.minimum.at(found.first[row], nodes, devices)
            np.maximum.at(found.last[row], nodes, devices)
        return found

    def same_node(self, links: NodeLinks, i: int, j: int) -> tuple[Flags, Flags]:
        """(N,) whether two different devices use a node's link, and whether its way back."""
        there, back = self.first[i] < self.last[j], self.last[i] > self.first[j]
        return there | (back & ~links.is_directed), back & links.is_directed


def class_links(
    links: NodeLinks, classes: Sequence[Integers], *, is_fastest: bool = False
) -> tuple[Floats, Floats]:
    """Links between any two different devices of each pair of T classes; zeros where none is.

    Where there is none one way, there is none the other way.

    Args:
        links: Of the cluster.
        classes: The devices of each, by their indices.
        is_fastest: The fastest of such links instead of the slowest.

    Returns:
        Latencies (T, T), s, and inverse bandwidths (T, T), s per byte.
    """
    choose = np.min if is_fastest else np.max
    latency_s, inverse_bandwidth = np.zeros((2, len(classes), len(classes)))
    places = _Places.of(links, classes)
    nodes = [np.flatnonzero(row >= 0) for row in places.last]
    for i, ours in enumerate(nodes):
        for j, theirs in enumerate(nodes):
            apart, inside = _between(links, ours, theirs), _inside(links, places, i, j)
            found_s, found_bandwidth = np.concatenate([apart, inside], axis=1)
            if len(found_s):
                latency_s[i, j] = choose(found_s)
                inverse_bandwidth[i, j] = choose(1 / found_bandwidth)
    # Who sends activations gets gradients: a link one way alone is none.
    is_missing = latency_s > MOST_LATENCY_S
    latency_s[is_missing.T] = NO_LINK.latency_s
    return latency_s, inverse_bandwidth


def class_rings(
    links: NodeLinks, classes: Sequence[Integers], latency_s: Floats, inverse_bandwidth: Floats
) -> RingLinks:
    """Inside nodes for as many replicas as a node has devices of the class.

    Args:
        links: Of the cluster.
        classes: The devices of each, by their indices.
        latency_s: (T, T) of `class_links`, for classes without such links.
        inverse_bandwidth: (T, T) of the same.
    """
    node_size = np.array([np.bincount(links.node_of[own]).max() for own in classes], np.int64)
    ring_s = np.diagonal(latency_s)[:, None].repeat(2, axis=1)
    ring_inverse = np.diagonal(inverse_bandwidth)[:, None].repeat(2, axis=1)
    places = _Places.of(links, classes)
    for index, last in enumerate(places.last):
        nodes = np.flatnonzero(last >= 0)
        both = _inside(links, places, index, index), _between(links, nodes, nodes)
        for far, (found_s, found_bandwidth) in enumerate(both):
            if len(found_s):
                ring_s[index, far] = found_s.min()
                ring_inverse[index, far] = (1 / found_bandwidth).min()
    return RingLinks(node_size, ring_s, ring_inverse)


def slowest_inside(links: NodeLinks, devices: Integers) -> tuple[float, float]:
    """The largest latency and the most seconds per byte from any device of a set to another one.

    Zeros for one device alone.

    Args:
        links: Of the cluster.
        devices: Different ones, by their indices.
    """
    latency_s, inverse_bandwidth = class_links(links, [devices])
    return float(latency_s[0, 0]), float(inverse_bandwidth[0, 0])


def _between(links: NodeLinks, ours: Integers, theirs: Integers) -> Floats:
    """(2, k) latencies and bandwidths of the links from some nodes to different other ones."""
    at, is_apart = np.ix_(ours, theirs), ours[:, None] != theirs
    return np.stack([links.latency_s[at][is_apart], links.bandwidth_bytes_per_s[at][is_apart]])


def _inside(links: NodeLinks, places: _Places, i: int, j: int) -> Floats:
    """(2, k) the same of the links inside nodes, from a class to different devices of another."""
    there, back = places.same_node(links, i, j)
    at = np.flatnonzero(there)
    latency_s = np.concatenate([links.latency_s[at, at], links.back_latency_s[back]])
    bandwidth = links.bandwidth_bytes_per_s[at, at], links.back_bandwidth[back]
    return np.stack([latency_s, np.concatenate(bandwidth)])
