"""What is known of a graph problem before any node is placed: the static part of the features.

Ways through the graph are *optimistic*: they wait for no device and no channel, and behind the node
in question each node stands on the device that suits it best.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats
from heterps_envs.compiled import helper, kernel
from heterps_envs.environments.base.state import log_ratio, ratio
from heterps_envs.environments.graph.state import GRAPH_NODE_FEATURES
from heterps_envs.graphs.problem import GraphProblems


class GraphGuides(NamedTuple):
    """Of N problems with V nodes on D devices; "seconds of a node" are forward plus backward.

    Attributes:
        reference_s: (N,) a step time that sets the scale: earliest finish, as a rule.
        round_trip_s: (N, V, D) optimistic seconds from the end of a node's forward pass on a device
            to the begin of its backward pass.
        stay_s: (N, V, D) the same if everything behind the node stands on that device too.
        remaining_s: (N, V + 1, D) seconds of all nodes from this one on, on one device; what it
            cannot run counts as on the slowest device that can.
        remaining_least_s: (N, V + 1) seconds of the same nodes, each where it is fastest.
        remaining_bytes: (N, V + 1) memory of the same nodes.
        remaining_largest_bytes: (N, V + 1) memory of the largest of them.
        by_size: (N, V) all nodes, the largest first.
        runs_everywhere: (N,) whether every device can run every node.
        mean_s, least_s: (N, V) seconds of a node: mean over the devices that can run it; least.
        transfer_s: (N, V) of a node's output and the gradient of it, over a mean link.
        node_features: (N, V, GRAPH_NODE_FEATURES) float32, see
            `heterps_envs.environments.graph.env`.
    """

    reference_s: Floats
    round_trip_s: Floats
    stay_s: Floats
    remaining_s: Floats
    remaining_least_s: Floats
    remaining_bytes: Floats
    remaining_largest_bytes: Floats
    by_size: NDArray[np.int32]
    runs_everywhere: NDArray[np.bool_]
    mean_s: Floats
    least_s: Floats
    transfer_s: Floats
    node_features: NDArray[np.float32]


def graph_guides(problems: GraphProblems, reference_s: Floats) -> GraphGuides:
    """Guides of all problems.

    Args:
        problems: N problems.
        reference_s: (N,) seconds that set the scale of all features.
    """
    count, nodes, devices = problems.num_problems, problems.max_nodes, problems.max_devices
    guides = GraphGuides(
        reference_s=np.array(reference_s),
        round_trip_s=np.zeros((count, nodes, devices)),
        stay_s=np.zeros((count, nodes, devices)),
        remaining_s=np.zeros((count, nodes + 1, devices)),
        remaining_least_s=np.zeros((count, nodes + 1)),
        remaining_bytes=np.zeros((count, nodes + 1)),
        remaining_largest_bytes=np.zeros((count, nodes + 1)),
        by_size=np.zeros((count, nodes), np.int32),
        runs_everywhere=np.zeros(count, np.bool_),
        mean_s=np.zeros((count, nodes)),
        least_s=np.zeros((count, nodes)),
        transfer_s=np.zeros((count, nodes)),
        node_features=np.zeros((count, nodes, GRAPH_NODE_FEATURES), np.float32),
    )
    for row in range(count):
        put_guide(problems, guides, row)
    return guides


def put_guide(problems: GraphProblems, guides: GraphGuides, row: int) -> None:
    """Writes the guide of one problem; `guides.reference_s` holds its scale already."""
    nodes, devices = int(problems.num_nodes[row]), int(problems.num_devices[row])
    order = np.argsort(-problems.memory_bytes[row, :nodes], kind="stable")
    guides.by_size[row, :nodes] = order
    runs = np.isfinite(problems.forward_s[row, :nodes, :devices])
    guides.runs_everywhere[row] = runs.all()
    _guide(problems, guides, row)
    _node_features(problems, guides, row)


@helper
def seconds_of(p: Any, z: int, node: int, device: int) -> float:
    """Forward and backward seconds of a node on a device."""
    return p.forward_s[z, node, device] + p.backward_s[z, node, device]  # type: ignore[no-any-return]


@helper
def there_and_back_s(p: Any, z: int, node: int, source: int, target: int) -> float:
    """Seconds of a node's output to another device and of the gradient from there; 0 to itself."""
    if source == target:
        return 0.0
    there = p.output_bytes[z, node] * p.inverse_bandwidth_s_per_byte[z, source, target]
    there += p.latency_s[z, source, target]
    if not p.has_backward[z]:
        return there  # type: ignore[no-any-return]
    back = p.gradient_bytes[z, node] * p.inverse_bandwidth_s_per_byte[z, target, source]
    return there + back + p.latency_s[z, target, source]  # type: ignore[no-any-return]


@kernel
def _guide(p: Any, g: Any, z: int) -> None:
    nodes, devices = p.num_nodes[z], p.num_devices[z]
    g.remaining_s[z, nodes] = 0.0
    g.remaining_least_s[z, nodes] = 0.0
    g.remaining_bytes[z, nodes] = 0.0
    g.remaining_largest_bytes[z, nodes] = 0.0
    for node in range(nodes - 1, -1, -1):
        total, able, least, most = 0.0, 0, np.inf, 0.0
        for device in range(devices):
            seconds = seconds_of(p, z, node, device)
            if seconds < np.inf:
                total += seconds
                able += 1
                least, most = min(least, seconds), max(most, seconds)
        g.mean_s[z, node] = total / able
        g.least_s[z, node] = least
        g.remaining_least_s[z, node] = g.remaining_least_s[z, node + 1] + least
        size = p.memory_bytes[z, node]
        g.remaining_bytes[z, node] = g.remaining_bytes[z, node + 1] + size
        g.remaining_largest_bytes[z, node] = max(g.remaining_largest_bytes[z, node + 1], size)
        transfers, pairs = 0.0, max(1, devices * (devices - 1))
        for source in range(devices):
            for target in range(devices):
                transfers += there_and_back_s(p, z, node, source, target)
            own = seconds_of(p, z, node, source)
            own = own if own < np.inf else most
            g.remaining_s[z, node, source] = g.remaining_s[z, node + 1, source] + own
            _ways(p, g, z, node, source)
        g.transfer_s[z, node] = transfers / pairs


@helper
def _ways(p: Any, g: Any, z: int, node: int, device: int) -> None:
    """Round trip and stay from one node on one device; those of its consumers are known."""
    longest, stay = 0.0, 0.0
    for edge in range(p.consumer_start[z, node], p.consumer_start[z, node + 1]):
        consumer: Any = np.int64(p.consumers[z, edge])
        best = np.inf
        for target in range(p.num_devices[z]):
            way = there_and_back_s(p, z, node, device, target)
            way += seconds_of(p, z, consumer, target) + g.round_trip_s[z, consumer, target]
            best = min(best, way)
        longest = max(longest, best)
        own = seconds_of(p, z, consumer, device)
        if own == np.inf:
            own = 2.0 * g.mean_s[z, consumer]
        stay = max(stay, own + g.stay_s[z, consumer, device])
    g.round_trip_s[z, node, device] = longest
    g.stay_s[z, node, device] = stay


@kernel
def _node_features(p: Any, g: Any, z: int) -> None:
    nodes, devices, scale = p.num_nodes[z], p.num_devices[z], g.reference_s[z]
    up, down = np.zeros(nodes), np.zeros(nodes)
    for node in range(nodes - 1, -1, -1):
        for edge in range(p.consumer_start[z, node], p.consumer_start[z, node + 1]):
            up[node] = max(up[node], g.transfer_s[z, node] + up[p.consumers[z, edge]])
        up[node] += g.mean_s[z, node]
    longest = 0.0
    for node in range(nodes):
        for edge in range(p.producer_start[z, node], p.producer_start[z, node + 1]):
            producer = p.producers[z, edge]
            way = down[producer] + g.mean_s[z, producer] + g.transfer_s[z, producer]
            down[node] = max(down[node], way)
        longest = max(longest, up[node] + down[node])
    all_bytes = 0.0
    for device in range(devices):
        all_bytes += p.device_memory_bytes[z, device]
    for node in range(nodes):
        most, forward, able = 0.0, 0.0, 0
        for device in range(devices):
            seconds = seconds_of(p, z, node, device)
            if seconds < np.inf:
                most = max(most, seconds)
                forward += p.forward_s[z, node, device]
                able += 1
        out = g.node_features[z, node]
        out[0] = ratio(8.0 * g.mean_s[z, node], scale)
        out[1] = ratio(8.0 * g.least_s[z, node], scale)
        out[2] = log_ratio(most, g.least_s[z, node])
        out[3] = ratio(forward / able, g.mean_s[z, node])
        out[4] = ratio(4.0 * g.transfer_s[z, node], scale)
        out[5] = ratio(p.memory_bytes[z, node] * nodes, 4.0 * g.remaining_bytes[z, 0])
        out[6] = ratio(2.0 * p.memory_bytes[z, node] * devices, all_bytes)
        out[7] = ratio(up[node], scale)
        out[8] = ratio(down[node], scale)
        out[9] = ratio(longest - up[node] - down[node], scale)
        out[10] = ratio(p.producer_start[z, node + 1] - p.producer_start[z, node], 4.0)
        out[11] = ratio(p.consumer_start[z, node + 1] - p.consumer_start[z, node], 4.0)
        out[12] = node / nodes
        out[13] = able / devices
