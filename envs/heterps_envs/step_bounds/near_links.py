"""The fastest links of a class's devices: to any other device, and to those of other nodes."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.links import devices_by_node
from heterps_envs.problem import Problem

# Of more nodes each is taken to be near all others: to look at every pair would take long.
MOST_NODES = 64
# Seconds of what no link carries.
NONE_S = 1e30


class NearLinks(NamedTuple):
    """(2, T) of T classes: the fastest to any other device, and to those of other nodes.

    In whichever direction is faster. Without any other device 0, without another node `NONE_S`.

    Attributes:
        latency_s: Less what hosts take for a message: that keeps them busy.
        s_per_byte: One over the bandwidth.
        ring_latency_s: Latencies as they are.
        node_size: (T,) most devices of a node that has some of the class, those of others too.
    """

    latency_s: Floats
    s_per_byte: Floats
    ring_latency_s: Floats
    node_size: Integers

    @classmethod
    def of(cls, problem: Problem) -> NearLinks:
        """The links of a problem's classes; found once for all problems of a cluster."""
        known, key = problem.links.derived, (cls, problem.nodes_apart)
        found = known.get(key)
        if not isinstance(found, cls):
            known[key] = found = cls._of(problem)
        return found

    @classmethod
    def _of(cls, problem: Problem) -> NearLinks:
        latency_s, s_per_byte = np.stack([_to_any(problem), _across(problem)], axis=1)
        sizes = Counter(device.node for device in problem.cluster.devices)
        size = [max(sizes[device.node] for device in e.devices) for e in problem.classes]
        if len(sizes) > MOST_NODES:
            size = [len(problem.cluster.devices)] * len(size)
        sent_s = np.maximum(latency_s - _host_s(problem), 0.0)
        return cls(sent_s, s_per_byte, latency_s, np.array(size, np.int64))


def class_messages(problem: Problem) -> tuple[Floats, Floats]:
    """(T, T) the least latency, less what hosts take, and seconds per byte between two classes."""
    fastest = problem.links.of_classes(problem.classes, problem.nodes_apart, is_fastest=True)
    latency_s, s_per_byte = (np.minimum(link, link.T) for link in fastest)
    return np.maximum(latency_s - _host_s(problem), 0.0), s_per_byte


def _host_s(problem: Problem) -> float:
    hosts = [node.host for node in problem.cluster.nodes]
    return max(host.send_s for host in hosts) + max(host.receive_s for host in hosts)


def _to_any(problem: Problem) -> Floats:
    """(2, T) latencies and seconds per byte."""
    # Also where devices of one class are on nodes that have others besides: then the tables have
    # the slowest links between classes.
    fastest = problem.links.of_classes(problem.classes, problem.nodes_apart, is_fastest=True)
    counts = np.array([len(entry.devices) for entry in problem.classes])
    is_other = ~np.eye(len(counts), dtype=bool) | np.diag(counts > 1)
    least = [np.where(is_other, np.minimum(link, link.T), np.inf).min(axis=1) for link in fastest]
    return np.array([np.where(np.isfinite(each), each, 0.0) for each in least])


def _across(problem: Problem) -> Floats:
    """(2, T) latencies and seconds per byte."""
    on_node = devices_by_node(problem.cluster.devices)
    if len(on_node) > MOST_NODES:
        return _to_any(problem)
    found = np.full((2, len(problem.classes)), NONE_S)
    for kind, entry in enumerate(problem.classes):
        for node, own in devices_by_node(entry.devices).items():
            ours = {node: own}
            others = {name: devices for name, devices in on_node.items() if name != node}
            for ends in ((ours, others), (others, ours)):
                for link in problem.links.of_nodes(*ends):
                    if link.is_there:
                        found[0, kind] = min(found[0, kind], link.latency_s)
                        found[1, kind] = min(found[1, kind], 1 / link.bandwidth_bytes_per_s)
    return found
