"""The earliest-finish rule on graphs, compiled: each node on the device that ends it first.

It is HEFT (Topcuoglu, Hariri and Wu, 2002) under the rules of `heterps_envs.graphs.simulator`:
links contend, memory is limited, and only forward passes are looked at, as the rule looks at
nothing beyond the node. In the order of the nodes it sees the very times that the simulator gives;
in another topological order (HEFT's upward ranks) what it sees is an estimate.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.arrays import Floats
from heterps_envs.compiled import compiled, helper, kernel
from heterps_envs.graphs.problem import GraphProblems, Placement
from heterps_envs.graphs.simulator import (
    clear_row,
    empty_row,
    one_graph,
    overflow_of,
    place_forward,
    step_time_of,
    unsigned,
)

# Where the plain rule runs out of memory, it is asked again to spare full devices, more and more.
_MEMORY_WEIGHTS = np.array([0.0, 0.25, 1.0, 4.0, 64.0])


def earliest_finish_placements(
    problems: GraphProblems, by_rank: bool = False
) -> tuple[Floats, Placement]:
    """The rule on every problem.

    Where it runs out of memory, full devices are made to look later, more and more; where even that
    fails, nodes are packed by memory alone, the largest first, with more room left on each device
    and then as tightly as they go.

    Args:
        problems: N problems.
        by_rank: Nodes in the order of HEFT's upward ranks instead of their own.

    Returns:
        Step times (N,), inf where nothing was found that fits, and devices (N, V) int16.
    """
    devices = np.zeros((problems.num_problems, problems.max_nodes), np.int16)
    step_time_s = np.full(problems.num_problems, np.inf)
    _earliest_finish(problems, by_rank, devices, step_time_s, empty_row(problems))
    return step_time_s, devices


def earliest_finish_row(problems: GraphProblems, row: int, devices: Placement) -> float:
    """The rule on one problem, in the order of its nodes.

    Args:
        problems: N problems.
        row: Which one.
        devices: (V,) written to.

    Returns:
        The step time; inf where nothing was found that fits.
    """
    return float(_place(problems, row, False, devices, empty_row(problems)))


@kernel
def _earliest_finish(p: Any, by_rank: bool, devices: Any, step_time_s: Any, row: Any) -> None:
    for z in range(len(p.num_nodes)):
        step_time_s[z] = _place(p, z, by_rank, devices[z], row)


@kernel
def _place(p: Any, z: int, by_rank: bool, devices: Any, row: Any) -> float:
    order = np.arange(p.num_nodes[z])
    if by_rank:
        rank = np.zeros(p.num_nodes[z])
        upward_ranks(p, z, rank)
        # A stable sort: among equal ranks (nodes that take no time) producers stay first.
        order = np.argsort(-rank, kind="mergesort")
    found = False
    for weight in _MEMORY_WEIGHTS:
        found = earliest_finish(p, z, order, weight, devices, row)
        if found:
            break
    found = found or _pack(p, z, devices, False) or _pack(p, z, devices, True)
    # In another order the sums of bytes may round in another way.
    if found and overflow_of(p, z, devices, row.free_s) == 0.0:
        return step_time_of(p, z, devices, row)
    return np.inf


@helper
def earliest_finish(
    p: Any, z: int, order: Any, memory_weight: float, devices: Any, row: Any
) -> bool:
    """Places the nodes of one problem in an order; whether all of them found a device.

    Args:
        p: `GraphProblems`.
        z: Row of the problem.
        order: (V,) a topological order.
        memory_weight: Makes a device that a node would fill look later by this share.
        devices: (V,) written to.
        row: `GraphRow`, written to.
    """
    g = one_graph(p, z)
    clear_row(g, row)
    memory = np.zeros(p.num_devices[z])
    channels = np.zeros(len(row.channel_free_s))
    for node in order:
        best, best_key = -1, np.inf
        for device in range(p.num_devices[z]):
            held = memory[device] + p.memory_bytes[z, node]
            if held > p.device_memory_bytes[z, device]:
                continue
            start_s = start_if_placed(g, node, device, devices, row, channels)
            finish_s = start_s + p.forward_s[z, node, device]
            key = finish_s * (1.0 + memory_weight * held / p.device_memory_bytes[z, device])
            if key < best_key:
                best, best_key = device, key
        if best < 0:
            return False
        devices[node] = best
        memory[best] += p.memory_bytes[z, node]
        place_forward(g, unsigned(node), unsigned(best), devices, row)
    return True


@compiled(error_model="numpy", inline="always")
def start_if_placed(g: Any, node: int, device: int, devices: Any, row: Any, channels: Any) -> float:
    """When the forward pass of the next node would begin on a device; changes nothing.

    Args:
        g: `OneGraph`.
        node: The next node.
        device: Where it would run.
        devices: (V,) devices of all nodes before it.
        row: `GraphRow` after the nodes before it.
        channels: (C,) scratch.
    """
    first, stop = unsigned(g.producer_start[node]), unsigned(g.producer_start[node + 1])
    for edge in range(first, stop):
        channel = unsigned(g.channel[unsigned(devices[unsigned(g.producers[edge])]), device])
        channels[channel] = row.channel_free_s[channel]
    start_s = row.free_s[device]
    for edge in range(first, stop):
        producer = unsigned(g.producers[edge])
        if (row.copies[producer] >> device) & 1:
            start_s = max(start_s, row.arrival_s[producer, device])
            continue
        source = unsigned(devices[producer])
        channel = unsigned(g.channel[source, device])
        busy_s = g.output_bytes[producer] * g.inverse_bandwidth_s_per_byte[source, device]
        channels[channel] = max(row.arrival_s[producer, source], channels[channel]) + busy_s
        start_s = max(start_s, channels[channel] + g.latency_s[source, device])
    return start_s  # type: ignore[no-any-return]


@kernel
def upward_ranks(p: Any, z: int, rank: Any) -> None:
    """Mean seconds from the begin of each node to the end of the graph, transfers included.

    Args:
        p: `GraphProblems`.
        z: Row of the problem.
        rank: (V,) written to.
    """
    devices = p.num_devices[z]
    latency_s, per_byte_s = 0.0, 0.0
    for source in range(devices):
        for target in range(devices):
            latency_s += p.latency_s[z, source, target]
            per_byte_s += p.inverse_bandwidth_s_per_byte[z, source, target]
    pairs = max(1, devices * (devices - 1))
    latency_s, per_byte_s = latency_s / pairs, per_byte_s / pairs
    for node in range(p.num_nodes[z] - 1, -1, -1):
        total_s, able = 0.0, 0
        for device in range(devices):
            if p.forward_s[z, node, device] < np.inf:
                total_s += p.forward_s[z, node, device]
                able += 1
        behind_s = 0.0
        for edge in range(p.consumer_start[z, node], p.consumer_start[z, node + 1]):
            consumer = p.consumers[z, edge]
            transfer_s = latency_s + p.output_bytes[z, node] * per_byte_s
            behind_s = max(behind_s, transfer_s + rank[consumer])
        rank[node] = total_s / able + behind_s


@helper
def _pack(p: Any, z: int, devices: Any, is_tight: bool) -> bool:
    """Largest nodes first, each on the device with most memory left; whether all found one.

    Where it is to be tight, each goes to the device with least memory left that has room for it.
    """
    left = p.device_memory_bytes[z, : p.num_devices[z]].copy()
    for node in np.argsort(-p.memory_bytes[z, : p.num_nodes[z]]):
        best = -1
        for device in range(p.num_devices[z]):
            able = p.forward_s[z, node, device] < np.inf
            if is_tight:
                able = able and left[device] >= p.memory_bytes[z, node]
                if able and (best < 0 or left[device] < left[best]):
                    best = device
            elif able and (best < 0 or left[device] > left[best]):
                best = device
        if best < 0 or left[best] < p.memory_bytes[z, node]:
            return False
        left[best] -= p.memory_bytes[z, node]
        devices[node] = best
    return True
