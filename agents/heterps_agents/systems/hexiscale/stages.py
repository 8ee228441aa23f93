"""Stages for the devices of a pipeline: tensor-parallel groups in an order along fast links."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from heterps_agents.systems.hexiscale.graph import DeviceGraph


class Group(NamedTuple):
    """Devices of one kind that hold a stage together.

    Attributes:
        devices: Their names.
        kind: Index of their kind.
    """

    devices: tuple[str, ...]
    kind: int

    @property
    def degree(self) -> int:
        """How many they are."""
        return len(self.devices)


def groups_of(kinds: Sequence[Sequence[str]], most: int, degrees: Sequence[int]) -> list[Group]:
    """All devices in groups as large as is allowed; what is left over in smaller ones, or idle.

    Args:
        kinds: Devices of each kind.
        most: Devices of a group at most.
        degrees: That are allowed.
    """
    found = []
    for kind, names in enumerate(kinds):
        taken = 0
        for degree in sorted((each for each in degrees if each <= most), reverse=True):
            while len(names) - taken >= degree:
                found.append(Group(tuple(names[taken : taken + degree]), kind))
                taken += degree
    return found


def orders(graph: DeviceGraph, groups: Sequence[Group]) -> Iterator[list[Group]]:
    """Orders of the stages: from most memory to least, and node by node along the fastest links.

    The front of a pipeline keeps most micro-batches, so nodes with much memory come first; the way
    back is the third order.
    """
    if len(groups) == 1:
        yield list(groups)
        return
    by_memory = sorted(groups, key=lambda group: -float(graph.weights[1, group.kind]))
    yield by_memory
    along = _along_links(graph, by_memory)
    for order in (along, along[::-1]):
        if order != by_memory:
            yield order


def _along_links(graph: DeviceGraph, groups: Sequence[Group]) -> list[Group]:
    """Groups by node; the next node is the one that the last is linked to fastest."""
    by_node: dict[int, list[Group]] = {}
    for group in groups:
        by_node.setdefault(int(graph.node_of[group.kind]), []).append(group)
    node = next(iter(by_node))
    found = by_node.pop(node)
    while by_node:
        here = node
        node = min(by_node, key=lambda other: _slowness(graph, here, other))
        found = [*found, *by_node.pop(node)]
    return found


def _slowness(graph: DeviceGraph, here: int, other: int) -> tuple[float, float]:
    return float(graph.s_per_byte[here, other]), float(graph.latency_s[here, other])
