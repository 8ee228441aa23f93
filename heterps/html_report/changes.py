"""Clusters that differ from one in one thing: links, memory, another node."""

from __future__ import annotations

from collections.abc import Iterator

from heterps_configs.documents.cluster import Cluster, Link, Node

FASTER, LARGER = 2.0, 1.5


def changes(cluster: Cluster) -> Iterator[tuple[str, Cluster]]:
    """What each change is, in words, and the cluster with it."""
    if len(cluster.nodes) > 1:
        yield "links between nodes twice as fast", _faster_between(cluster)
    if any(node.link is not None for node in cluster.nodes):
        yield "links inside nodes twice as fast", _faster_inside(cluster)
    types = list(dict.fromkeys(group.type for node in cluster.nodes for group in node.devices))
    for kind in types:
        yield from _one_more(cluster, kind)
    for kind in types:
        yield f"half as much memory again on each {kind}", _larger(cluster, kind)


def price_usd_per_hour(cluster: Cluster) -> float:
    """Of all devices."""
    return sum(device.price_usd_per_hour for device in cluster.devices)


def _faster(link: Link | None) -> Link | None:
    if link is None or not link.is_there:
        return link
    return link.changed(bandwidth_bytes_per_s=FASTER * link.bandwidth_bytes_per_s)


def _faster_between(cluster: Cluster) -> Cluster:
    return cluster.changed(
        inter_node_link=_faster(cluster.inter_node_link),
        inter_region_link=_faster(cluster.inter_region_link),
        link_overrides=tuple(
            entry.changed(link=_faster(entry.link), reverse_link=_faster(entry.reverse_link))
            for entry in cluster.link_overrides
        ),
    )


def _faster_inside(cluster: Cluster) -> Cluster:
    return cluster.changed(
        nodes=tuple(
            node.changed(
                link=_faster(node.link),
                reverse_link=_faster(node.reverse_link),
                collectives=tuple(
                    entry.changed(bandwidth_bytes_per_s=FASTER * entry.bandwidth_bytes_per_s)
                    for entry in node.collectives
                ),
            )
            for node in cluster.nodes
        )
    )


def _larger(cluster: Cluster, kind: str) -> Cluster:
    usual = cluster.device_type(kind).memory_bytes
    return cluster.changed(
        nodes=tuple(
            node.changed(
                devices=tuple(
                    group.changed(memory_bytes=int(LARGER * (group.memory_bytes or usual)))
                    if group.type == kind
                    else group
                    for group in node.devices
                )
            )
            for node in cluster.nodes
        )
    )


def _one_more(cluster: Cluster, kind: str) -> Iterator[tuple[str, Cluster]]:
    """Another node like the last one with the type; of a cluster of one node, another device."""
    node = [each for each in cluster.nodes if any(g.type == kind for g in each.devices)][-1]
    if len(cluster.nodes) > 1:
        kinds = ", ".join(f"{group.count} {group.type}" for group in node.devices)
        more = node.changed(
            name=_free(cluster, f"another-{node.name}"),
            devices=tuple(
                group.changed(name=_free(cluster, f"another-{group.name}"))
                for group in node.devices
            ),
        )
        yield f"another node with {kinds}", cluster.changed(nodes=(*cluster.nodes, more))
    elif node.link is not None:
        group = next(group for group in node.devices if group.type == kind)
        one = group.changed(name=_free(cluster, f"another-{kind}"), count=1)
        nodes = (_with(node, one),)
        yield f"another {kind}", cluster.changed(nodes=nodes)


def _with(node: Node, group: object) -> Node:
    return node.changed(devices=(*node.devices, group))


def _free(cluster: Cluster, name: str) -> str:
    taken = {device.name for device in cluster.devices} | {node.name for node in cluster.nodes}
    taken |= {group.name for node in cluster.nodes for group in node.devices}
    while name in taken or f"{name}-0" in taken:
        name = f"{name}-more"
    return name
