"""The problem that is left when devices are gone: same model and job, a cluster without them."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Node
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem


def without_devices(problem: Problem, lost: Collection[str]) -> Problem:
    """A problem on the devices that are left; they keep their names, nodes and order.

    Args:
        problem: With all devices.
        lost: Names of devices; those that the cluster does not have are no error.

    Raises:
        HeterpsError: No device is left.
    """
    gone = frozenset(lost) & problem.device_named.keys()
    return replace(problem, cluster=_cluster_without(problem.cluster, gone)) if gone else problem


def _cluster_without(cluster: Cluster, gone: frozenset[str]) -> Cluster:
    nodes = tuple(
        node.changed(devices=groups)
        for node in cluster.nodes
        if (groups := _groups_without(node, gone))
    )
    if not nodes:
        raise HeterpsError(f"cluster {cluster.name!r}: no device is left")
    kept = {node.name for node in nodes}
    overrides = tuple(entry for entry in cluster.link_overrides if kept.issuperset(entry.between))
    return cluster.changed(nodes=nodes, link_overrides=overrides)


def _groups_without(node: Node, gone: frozenset[str]) -> tuple[DeviceGroup, ...]:
    """Whole groups stay as they are; of the others each device becomes a group of its own."""
    groups: list[DeviceGroup] = []
    for group in node.devices:
        names = group.device_names()
        if gone.isdisjoint(names):
            groups.append(group)
        else:
            left = [name for name in names if name not in gone]
            groups.extend(group.changed(name=name, count=1) for name in left)
    return tuple(groups)
