"""Seconds per byte between the nodes of a problem, for methods that count no latencies."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import product
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats
from heterps_envs.problem import Problem


class NodeLinks(NamedTuple):
    """Links between devices, by their nodes.

    Attributes:
        node_of: Index of each device's node.
        s_per_byte: (N, N) of a link between devices of two nodes, in its slower direction; of a
            node with itself, between two of its devices, 0 where it has one.
    """

    node_of: dict[str, int]
    s_per_byte: Floats

    @classmethod
    def of(cls, problem: Problem) -> NodeLinks:
        """Those of a problem's cluster."""
        names: dict[str, list[str]] = {}
        for device in problem.cluster.devices:
            names.setdefault(device.node, []).append(device.name)
        own = list(names.values())
        s_per_byte = np.zeros((len(own), len(own)))
        for one, two in product(range(len(own)), repeat=2):
            # A device of a node with the last one of another, or of the same.
            ends = own[one][0], own[two][-1]
            pairs = (ends, ends[::-1]) if ends[0] != ends[1] else ()
            links = [problem.link(*pair) for pair in pairs]
            s_per_byte[one, two] = max((1 / e.bandwidth_bytes_per_s for e in links), default=0.0)
        node_of = {name: index for index, members in enumerate(own) for name in members}
        return cls(node_of, s_per_byte)

    def slowest(self, first: Iterable[str], second: Iterable[str]) -> float:
        """Seconds per byte of the slowest link between devices of two sets that share none."""
        one, two = ({self.node_of[name] for name in names} for names in (first, second))
        return max(float(self.s_per_byte[pair]) for pair in product(one, two))

    def slowest_within(self, names: Iterable[str]) -> float:
        """Seconds per byte of the slowest link between any two of some devices; 0 for one."""
        members = [self.node_of[name] for name in names]
        nodes = sorted(set(members))
        pairs = (p for p in product(nodes, repeat=2) if p[0] != p[1] or members.count(p[0]) > 1)
        return max((float(self.s_per_byte[pair]) for pair in pairs), default=0.0)
