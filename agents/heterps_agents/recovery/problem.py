"""What was learned of some devices, and what was believed of the others: one problem of both."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from heterps_configs.documents.cluster import DeviceGroup, Node
from heterps_envs.problem import Problem


def with_missing_devices(problem: Problem, everything: Problem) -> Problem:
    """Adds devices that a corrected problem lacks, as they were believed to be.

    While a device is away, corrections are made without it; when it comes back, its links and its
    type are those of before.

    Args:
        problem: As measurements corrected it, without devices that were lost then.
        everything: The same problem from before, with all devices.
    """
    if problem.device_named.keys() >= everything.device_named.keys():
        return problem
    known = {node.name: node for node in problem.cluster.nodes}
    nodes = tuple(
        node if node.name not in known else _joined(known[node.name], node)
        for node in everything.cluster.nodes
    )
    # Links between nodes are those of the corrected problem, where it knows both.
    own = {entry.name: entry for entry in everything.cluster.device_types}
    own |= {entry.name: entry for entry in problem.cluster.device_types}
    links = {entry.between: entry for entry in everything.cluster.link_overrides}
    links |= {entry.between: entry for entry in problem.cluster.link_overrides}
    cluster = problem.cluster.changed(
        nodes=nodes, device_types=tuple(own.values()), link_overrides=tuple(links.values())
    )
    return replace(problem, cluster=cluster)


def _joined(known: Node, full: Node) -> Node:
    """The full node, with the known one's devices in place of its own."""
    corrected = {group.name: group for group in _singles(known)}
    groups = tuple(corrected.get(group.name, group) for group in _singles(full))
    return known.changed(devices=groups)


def _singles(node: Node) -> Iterator[DeviceGroup]:
    """Each device as a group of its own."""
    for group in node.devices:
        for name in group.device_names():
            yield group.changed(name=name, count=1)
