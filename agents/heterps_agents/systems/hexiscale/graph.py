"""The graph that is partitioned: devices with their speed and memory, links with their bandwidth.

Devices of one class on one node are alike, and count together as a kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Protocol

import numpy as np

from heterps_configs.documents.cluster import Link
from heterps_envs.arrays import Floats, Integers
from heterps_envs.problem import Problem

# Where a device takes no time at all, or has no room at all.
LEAST_S, LEAST_BYTES = 1e-15, 1.0


class Graph(Protocol):
    """What a partition sees: U kinds of devices."""

    @property
    def counts(self) -> Integers:
        """(U,) devices of each kind."""
        ...

    @property
    def weights(self) -> Floats:
        """(2, U) speed and memory of one device."""
        ...

    @property
    def bandwidth(self) -> Floats:
        """(U, U) bytes per second between devices of two kinds; 0: no link."""
        ...


class DeviceGraph:
    """The graph of a problem's devices.

    Attributes:
        kinds: Names of the devices of each kind, in the cluster's order.
        node_of: (U,) index of each kind's node.
        class_of: (U,) index of each kind's class.
        latency_s: (N, N) between devices of two nodes, in the slower direction; inf: no link.
        s_per_byte: (N, N) of the same links.
    """

    def __init__(self, problem: Problem) -> None:
        kinds: dict[tuple[str, int], list[str]] = {}
        for device in problem.cluster.devices:
            key = device.node, problem.class_of[device.name]
            kinds.setdefault(key, []).append(device.name)
        nodes = list(dict.fromkeys(node for node, _ in kinds))
        self.kinds = tuple(tuple(names) for names in kinds.values())
        self.node_of = np.array([nodes.index(node) for node, _ in kinds])
        self.class_of = np.array([kind for _, kind in kinds])
        on_node = [
            [name for (own, _), names in kinds.items() if own == node for name in names]
            for node in nodes
        ]
        self.latency_s, self.s_per_byte = _links(problem, on_node)
        tables = problem.tables
        speed = 1 / np.maximum(tables.compute_s.sum(axis=0), LEAST_S)
        room = np.maximum(tables.memory_bytes, LEAST_BYTES)
        self.weights: Floats = np.stack((speed, room))[:, self.class_of]

    @cached_property
    def counts(self) -> Integers:
        """(U,) devices of each kind."""
        return np.array([len(names) for names in self.kinds], np.int64)

    @cached_property
    def bandwidth(self) -> Floats:
        """(U, U) bytes per second of the links; 0: there is none."""
        both = np.ix_(self.node_of, self.node_of)
        inverse = np.where(np.isfinite(self.latency_s), self.s_per_byte, np.inf)[both]
        known = np.isfinite(inverse) & (inverse > 0)
        found = np.where(known, 1 / np.where(known, inverse, 1.0), 0.0)
        return np.ascontiguousarray(found, np.float64)

    def named(self, parts: Integers) -> list[list[list[str]]]:
        """The devices of each part (P, U), by their kinds."""
        ends = np.cumsum(parts, axis=0)
        return [
            [
                list(names[end - count : end])
                for names, end, count in zip(self.kinds, part_ends, part, strict=True)
            ]
            for part_ends, part in zip(ends.tolist(), parts.tolist(), strict=True)
        ]


def _links(problem: Problem, nodes: Sequence[Sequence[str]]) -> tuple[Floats, Floats]:
    """(N, N) latency and seconds per byte; 0 and 0 of a node with one device with itself."""
    size = len(nodes)
    latency_s, s_per_byte = np.zeros((size, size)), np.zeros((size, size))
    for one, ours in enumerate(nodes):
        for two, theirs in enumerate(nodes):
            ends = ours[0], theirs[-1]
            found: list[Link] = []
            if ends[0] != ends[1]:
                found = [problem.link(*ends), problem.link(*ends[::-1])]
            for link in found:
                latency = link.latency_s if link.is_there else np.inf
                latency_s[one, two] = max(latency_s[one, two], latency)
                slower = max(s_per_byte[one, two], 1 / link.bandwidth_bytes_per_s)
                s_per_byte[one, two] = slower
    return latency_s, s_per_byte
