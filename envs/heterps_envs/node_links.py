"""The links of a cluster as arrays by node: found once, for plans with thousands of messages."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_configs.documents.cluster import Cluster, Link
from heterps_envs.arrays import Flags, Floats, Integers


class NodeLinks(NamedTuple):
    """N nodes, D devices, in the order of the cluster; what `Cluster.link` says of them.

    Attributes:
        node_of: (D,) the node of each device.
        latency_s: (N, N) from a node to another one, or to a later device of the same node.
        bandwidth_bytes_per_s: (N, N) of the same links.
        back_latency_s: (N,) from a device to an earlier one of the same node.
        back_bandwidth: (N,) of the same links, bytes per second.
        is_directed: (N,) whether these are other links.
    """

    node_of: Integers
    latency_s: Floats
    bandwidth_bytes_per_s: Floats
    back_latency_s: Floats
    back_bandwidth: Floats
    is_directed: Flags

    @classmethod
    def of(cls, cluster: Cluster) -> NodeLinks:
        """The arrays of a cluster; NaN where a node has a single device."""
        index = {node.name: number for number, node in enumerate(cluster.nodes)}
        found = np.full((2, len(index), len(index)), np.nan)
        back = np.full((2, len(index)), np.nan)
        _put(found, (slice(None), slice(None)), cluster.inter_node_link)
        regions = np.array([node.region for node in cluster.nodes])
        if cluster.inter_region_link is not None:
            _put(found, regions[:, None] != regions, cluster.inter_region_link)
        for override in reversed(cluster.link_overrides):  # of several the first one counts
            a, b = (index[name] for name in override.between)
            _put(found, (b, a), override.reverse_link or override.link)
            _put(found, (a, b), override.link)
        for number, node in enumerate(cluster.nodes):
            found[:, number, number] = np.nan
            _put(found, (number, number), node.link)
            _put(back, number, node.reverse_link or node.link)
        return cls(
            np.array([index[device.node] for device in cluster.devices], np.int64),
            found[0],
            found[1],
            back[0],
            back[1],
            np.array([node.reverse_link is not None for node in cluster.nodes]),
        )

    def between(self, first: Integers, second: Integers) -> tuple[Floats, Floats]:
        """Latencies, s, and bandwidths, bytes per second, between pairs of different devices.

        Args:
            first: Devices at one end, by their indices.
            second: Those at the other end, of the same shape.
        """
        a, b = self.node_of[first], self.node_of[second]
        latency_s, bandwidth = self.latency_s[a, b], self.bandwidth_bytes_per_s[a, b]
        is_back = (a == b) & (first > second) & self.is_directed[a]
        if is_back.any():
            latency_s[is_back] = self.back_latency_s[a[is_back]]
            bandwidth[is_back] = self.back_bandwidth[a[is_back]]
        return latency_s, bandwidth


def _put(found: Floats, at: object, link: Link | None) -> None:
    if link is not None:
        for values, value in zip(found, (link.latency_s, link.bandwidth_bytes_per_s), strict=True):
            values[at] = value
