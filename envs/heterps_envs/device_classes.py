"""Classes of devices that placements need not tell apart, found in a cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from heterps_configs.documents.cluster import Cluster, Device
from heterps_configs.documents.device import DeviceType

# A coded placement has eight bits for the option, and a class may have many of them.
MAX_CLASSES = 16
# Equal devices on different nodes are told apart while there are no more classes than this: exact
# solving takes exponentially longer with each.
MAX_NODE_CLASSES = 8
# Whose equal devices are classes of their own: those of nodes that differ, of all nodes, of none.
# Where no node has two of them they share a class, unless "each" keeps these apart, too.
NodesApart = Literal["unequal", "all", "none", "each"]
# Devices by what makes them equal, in the order of the cluster.
Groups = Mapping[tuple[object, ...], Sequence[Device]]


@dataclass(frozen=True)
class DeviceClass:
    """Devices that a placement need not tell apart: same type, memory and price, on equal nodes.

    A placement names classes; binding picks the devices. Nodes that differ are kept apart because a
    link between nodes is slower than one inside; only where that makes more than
    `MAX_NODE_CLASSES` classes, devices of one region share a class. Where a class has several
    nodes, its tables have the slowest link between any two devices.
    """

    name: str
    type: DeviceType
    devices: tuple[Device, ...]

    @property
    def count(self) -> int:
        """How many devices there are."""
        return len(self.devices)


def device_groups(cluster: Cluster, apart: NodesApart) -> Groups:
    """Devices by what makes them equal; single devices of many nodes stay together, unless "each".

    Where some cannot send messages to each other, those of every node are apart.
    """
    groups: dict[tuple[object, ...], list[Device]] = {}
    for device in cluster.devices:
        kind = (device.type.name, device.memory_bytes, device.price_usd_per_hour, device.region)
        groups.setdefault(kind, []).append(device)
    if apart == "none":
        return groups
    first_like = first_like_nodes(cluster)
    parts: dict[tuple[object, ...], list[Device]] = {}
    for devices in groups.values():
        shares_nodes = len({device.node for device in devices}) < len(devices)
        shares_nodes |= cluster.lacks_links or apart == "each"
        for device in devices:
            node = device.node if shares_nodes else ""
            if shares_nodes and apart == "unequal" and not cluster.lacks_links:
                node = first_like[node]
            parts.setdefault((id(devices), node), []).append(device)
    return parts


def first_like_nodes(cluster: Cluster) -> dict[str, str]:
    """For each node the first one that equals it, in devices, links inside and host.

    A node with a link of its own to another one equals none.
    """
    named = {name for entry in cluster.link_overrides for name in entry.between}
    first: dict[str, str] = {}
    found: dict[str, str] = {}
    for node in cluster.nodes:
        groups = [
            (entry.type, entry.count, entry.memory_bytes, entry.price_usd_per_hour)
            for entry in node.devices
        ]
        kind = (node.region, groups, node.link, node.reverse_link, node.host)
        key = node.name if node.name in named else repr(kind)
        found[node.name] = first.setdefault(key, node.name)
    return found


def classes_of(groups: Groups) -> tuple[DeviceClass, ...]:
    """A class for each group, with a name of its own."""
    names = _class_names(groups.values())
    return tuple(
        DeviceClass(name, devices[0].type, tuple(devices))
        for name, devices in zip(names, groups.values(), strict=True)
    )


def _class_names(groups: Collection[Sequence[Device]]) -> list[str]:
    """The type's name, with the node and then the first device where that is not unique."""
    firsts = [devices[0] for devices in groups]
    types = [device.type.name for device in firsts]
    names = [
        name if types.count(name) == 1 else f"{name}@{device.node}"
        for name, device in zip(types, firsts, strict=True)
    ]
    return [
        name if names.count(name) == 1 else f"{name}/{device.name}"
        for name, device in zip(names, firsts, strict=True)
    ]
