"""Links between the devices of a cluster, and the arrays of links between device classes."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice, product

import numpy as np

from heterps_configs.documents.cluster import NO_LINK, Cluster, Device, Link
from heterps_envs.arrays import Floats, Integers
from heterps_envs.class_links import class_links, class_rings
from heterps_envs.cost_tables import RingLinks
from heterps_envs.device_classes import DeviceClass, Groups, NodesApart, device_groups
from heterps_envs.node_links import NodeLinks

DevicesByNode = Mapping[str, Sequence[Device]]


class Links:
    """Of one cluster; pairs of devices with equal ends are looked up once.

    What else follows from a cluster alone is kept here, too: many problems share one.

    Attributes:
        cluster: Whose links they are.
        derived: What others found out about them, by keys of their own.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.derived: dict[Hashable, object] = {}
        self._by_ends: dict[tuple[str, str, bool], Link] = {}
        self._groups: dict[NodesApart, Groups] = {}
        self._of_classes: dict[tuple[NodesApart, bool], tuple[Floats, Floats]] = {}
        self._rings: dict[tuple[NodesApart, bool], RingLinks] = {}

    def groups(self, apart: NodesApart) -> Groups:
        """The devices that are equal (`heterps_envs.device_classes.device_groups`)."""
        if apart not in self._groups:
            self._groups[apart] = device_groups(self.cluster, apart)
        return self._groups[apart]

    def of_classes(
        self, classes: Sequence[DeviceClass], apart: NodesApart, *, is_fastest: bool
    ) -> tuple[Floats, Floats]:
        """Copies of the arrays of `heterps_envs.class_links.class_links`.

        Args:
            classes: Those of the problems that keep nodes apart in this way.
            apart: On which nodes equal devices are apart.
            is_fastest: See `class_links`.
        """
        key = apart, is_fastest
        if key not in self._of_classes:
            self._of_classes[key] = class_links(
                self.by_node, self._indices(classes), is_fastest=is_fastest
            )
        latency_s, inverse_bandwidth = self._of_classes[key]
        return latency_s.copy(), inverse_bandwidth.copy()

    def rings(
        self, classes: Sequence[DeviceClass], apart: NodesApart, *, is_fastest: bool
    ) -> RingLinks:
        """Copies of the arrays of `class_rings`; arguments as of `of_classes`."""
        key = apart, is_fastest
        if key not in self._rings:
            of_classes = self.of_classes(classes, apart, is_fastest=is_fastest)
            self._rings[key] = class_rings(self.by_node, self._indices(classes), *of_classes)
        return RingLinks._make(array.copy() for array in self._rings[key])

    def _indices(self, classes: Sequence[DeviceClass]) -> list[Integers]:
        index = self.index
        return [
            np.array([index[device.name] for device in entry.devices], np.int64)
            for entry in classes
        ]

    def between(self, a: Device, b: Device) -> Link:
        """The link from one device to another."""
        ends = self._ends(a, b)
        if ends not in self._by_ends:
            self._by_ends[ends] = self.cluster.link(a, b)
        return self._by_ends[ends]

    def different(self, pairs: Iterable[tuple[Device, Device]]) -> list[Link]:
        """The links between pairs of different devices, those with equal ends once."""
        ends = {self._ends(a, b): (a, b) for a, b in pairs if a.name != b.name}
        return [self.between(*pair) for pair in ends.values()]

    def of_nodes(self, first: DevicesByNode, second: DevicesByNode) -> list[Link]:
        """The links from some devices to different other ones, those with equal ends once.

        Args:
            first: Devices of each node.
            second: The same, of the other ends.
        """
        found = []
        for a, ours in first.items():
            for b, theirs in second.items():
                pairs: Iterable[tuple[Device, Device]] = product(ours, theirs)
                if a != b:
                    pairs = ((ours[0], theirs[0]),)
                elif a not in self._directed_nodes:
                    pairs = islice((pair for pair in pairs if pair[0].name != pair[1].name), 1)
                found += self.different(pairs)
        return found

    def _ends(self, a: Device, b: Device) -> tuple[str, str, bool]:
        """What decides which link leads from one device to another."""
        if a.node != b.node or a.node not in self._directed_nodes:
            return a.node, b.node, False
        return a.node, b.node, self.index[a.name] > self.index[b.name]

    @cached_property
    def by_node(self) -> NodeLinks:
        """All links, as arrays."""
        return NodeLinks.of(self.cluster)

    @cached_property
    def _directed_nodes(self) -> frozenset[str]:
        """Nodes whose devices have another link to those in front of them."""
        nodes = self.cluster.nodes
        return frozenset(node.name for node in nodes if node.reverse_link is not None)

    @cached_property
    def index(self) -> dict[str, int]:
        """The devices' indices by their names, in the order of the cluster."""
        return {device.name: index for index, device in enumerate(self.cluster.devices)}


def devices_by_node(devices: Iterable[Device]) -> dict[str, list[Device]]:
    """The devices of each node that has any, in their order."""
    by_node: dict[str, list[Device]] = {}
    for device in devices:
        by_node.setdefault(device.node, []).append(device)
    return by_node


def measured_all_reduces(
    cluster: Cluster, classes: Sequence[DeviceClass], devices: int
) -> tuple[Link | None, ...]:
    """For each class what so many devices of one of its nodes take for a sum, at the slowest node.

    None where nobody has measured it on one of them.
    """
    nodes = {node.name: node for node in cluster.nodes}
    slowest: list[Link | None] = []
    for entry in classes:
        names = dict.fromkeys(device.node for device in entry.devices)
        found = [nodes[name].measured("all-reduce", devices) for name in names]
        known = [link for link in found if link is not None]
        slowest.append(_slowest(known) if len(known) == len(found) else None)
    return tuple(slowest)


def links_inside_nodes(cluster: Cluster, classes: Sequence[DeviceClass]) -> tuple[Link, ...]:
    """For each class the slowest link inside one of its nodes; none where one is missing."""
    nodes = {node.name: node for node in cluster.nodes}
    slowest = []
    for entry in classes:
        own = [nodes[name] for name in dict.fromkeys(device.node for device in entry.devices)]
        found = [link for node in own for link in (node.link, node.reverse_link) if link]
        if not found or not all(link.is_there for link in found):
            slowest.append(NO_LINK)
            continue
        slowest.append(_slowest(found))
    return tuple(slowest)


def _slowest(links: Sequence[Link]) -> Link:
    return Link(
        latency_s=max(link.latency_s for link in links),
        bandwidth_bytes_per_s=min(link.bandwidth_bytes_per_s for link in links),
    )
