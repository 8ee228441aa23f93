"""Parts of a cluster whose devices are near each other: plans are sought in each alone.

The formula of pipelines knows one link between all devices, the slowest. Where that goes over a
wide-area network, replicas on one node look as if their sums went there too.
"""

from __future__ import annotations

import math
from itertools import combinations

from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.problem import Problem

# Of larger clusters pairs of nodes are many, and no part of them decides much.
MOST_NODES = 24


def islands(problem: Problem, most: int, most_devices: int | None = None) -> list[Problem]:
    """The problem on single nodes, and on nodes with fast links between them; the fastest first.

    Of parts that are alike there is one. All devices together are no part.

    Args:
        problem: What was asked.
        most: So many parts at most.
        most_devices: Of each; None: all but one.
    """
    if most == 0:
        return []
    on_node: dict[str, list[str]] = {}
    for name, device in problem.device_named.items():
        on_node.setdefault(device.node, []).append(name)
    if not 1 < len(on_node) <= MOST_NODES:
        return []
    largest = min(most_devices or math.inf, len(problem.device_named) - 1)
    seconds = problem.tables.compute_s.sum(axis=0)
    found: dict[tuple[str, ...], tuple[float, list[str]]] = {}
    for nodes in _components(problem, on_node):
        names = [name for node in sorted(nodes) for name in on_node[node]]
        if 1 < len(names) <= largest:
            speed = sum(1 / max(float(seconds[problem.class_of[name]]), 1e-30) for name in names)
            alike = tuple(sorted(problem.equal_nodes[node] for node in nodes))
            found.setdefault(alike, (speed, names))
    fastest = sorted(found.values(), key=lambda each: -each[0])[:most]
    return [_alone(problem, names) for _, names in fastest]


def _alone(problem: Problem, names: list[str]) -> Problem:
    """The problem on some devices; the same one each time, as much is found out about it."""
    key = _alone, tuple(names)
    known = problem.derived.get(key)
    if not isinstance(known, Problem):
        others = problem.device_named.keys() - set(names)
        problem.derived[key] = known = without_devices(problem, others)
    return known


def _components(problem: Problem, on_node: dict[str, list[str]]) -> list[frozenset[str]]:
    """Nodes alone, and those that links join which are as fast as some link or faster."""
    of_node = {node: frozenset([node]) for node in on_node}
    found = dict.fromkeys(of_node.values())
    links = {
        pair: problem.link(on_node[pair[0]][0], on_node[pair[1]][0]).bandwidth_bytes_per_s
        for pair in combinations(on_node, 2)
    }
    for level in sorted(set(links.values()), reverse=True):
        for (one, two), bandwidth in links.items():
            if bandwidth == level and of_node[one] is not of_node[two]:
                joined = of_node[one] | of_node[two]
                of_node |= dict.fromkeys(joined, joined)
        found |= dict.fromkeys(of_node.values())
    return list(found)
