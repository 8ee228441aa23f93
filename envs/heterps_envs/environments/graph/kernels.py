"""One decision on a graph, compiled: the features of all devices for the next node, and the step.

The features are described in `heterps_envs.environments.graph.env`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_envs.compiled import helper, kernel
from heterps_envs.environments.base.state import (
    COMPLETE,
    RUNNING,
    STUCK,
    log_ratio,
    ratio,
    take_candidates,
)
from heterps_envs.environments.graph.fit import allow_devices
from heterps_envs.environments.graph.guides import seconds_of, there_and_back_s
from heterps_envs.graphs.earliest_finish import start_if_placed
from heterps_envs.graphs.simulator import GraphRow, end_of_step, one_graph, place_forward, unsigned

# Columns of what is found out about each device before features compare them.
_FINISH, _RETURN, _THROUGH, _TRANSFER, _SHARED = 0, 1, 2, 3, 4


class _OverAll(NamedTuple):
    """What features of a device are compared with: the least or most of all devices.

    Attributes:
        finish_s, return_s, through_s, least_s: Least of the allowed devices; the last one is the
            node's own seconds.
        load_s, free_s: The largest load, and when the last device is free.
        remaining_s: Least seconds of all later nodes.
        channel_s: Load of the busiest channel.
        all_bytes, left_bytes: Memory of all devices, and what is free of it.
    """

    finish_s: float
    return_s: float
    through_s: float
    least_s: float
    load_s: float
    free_s: float
    remaining_s: float
    channel_s: float
    all_bytes: float
    left_bytes: float


@kernel
def observe_graphs(p: Any, guides: Any, rows: Any, view: Any, which: Any) -> None:
    """Writes what running episodes see; one that no device can take on becomes STUCK.

    Args:
        p: `GraphProblems`.
        guides: `GraphGuides`.
        rows: `GraphRows`.
        view: `GraphView`, written to.
        which: (K,) row indices.
    """
    devices = view.allowed.shape[1]
    found, channels = np.zeros((devices, 5)), np.zeros(rows.channel_free_s.shape[1])
    for row in which:
        if rows.status[row] == RUNNING and not _observe_row(
            p, guides, rows, view, row, found, channels
        ):
            rows.status[row] = STUCK


@kernel
def advance_graphs(p: Any, guides: Any, rows: Any, view: Any, actions: Any) -> None:
    """Places the next node in every running episode; after the last one, runs the step to its end.

    Args:
        p: `GraphProblems`.
        guides: `GraphGuides`.
        rows: `GraphRows`.
        view: What `observe_graphs` wrote; the candidates of finished episodes are taken away.
        actions: (B,) allowed devices.
    """
    for row in range(len(rows.problem)):
        if rows.status[row] != RUNNING:
            continue
        z, node = rows.problem[row], rows.position[row]
        device: Any = np.int64(actions[row])
        devices, state = rows.devices[row], _simulation(rows, row)
        g = one_graph(p, z)
        finish_s = place_forward(g, unsigned(node), unsigned(device), devices, state)
        devices[node] = device
        rows.memory_bytes[row, device] += p.memory_bytes[z, node]
        rows.load_s[row, device] += seconds_of(p, z, node, device)
        _charge_channels(p, rows, row, z, node, device)
        rows.return_s[row, node] = p.backward_s[z, node, device] + _return_s(
            p, rows, row, z, node, device
        )
        through_s = finish_s + guides.round_trip_s[z, node, device] + rows.return_s[row, node]
        rows.longest_s[row] = max(rows.longest_s[row], through_s)
        rows.position[row] = node + 1
        if node + 1 == p.num_nodes[z]:
            rows.step_time_s[row] = end_of_step(g, devices, state)
            rows.status[row] = COMPLETE
            take_candidates(view, row)


@helper
def _simulation(rows: Any, row: int) -> Any:
    return GraphRow(
        rows.arrival_s[row],
        rows.copies[row],
        rows.is_sent[row],
        rows.gradient_s[row],
        rows.start_s[row],
        rows.finish_s[row],
        rows.free_s[row],
        rows.channel_free_s[row],
    )


@helper
def _charge_channels(p: Any, rows: Any, row: int, z: int, node: int, device: int) -> None:
    """Counts the transfers that the node made necessary, and the gradients that go back."""
    for edge in range(p.producer_start[z, node], p.producer_start[z, node + 1]):
        if rows.is_sent[row, edge]:
            producer = p.producers[z, edge]
            home = rows.devices[row, producer]
            rows.channel_load_s[row, p.channel[z, home, device]] += (
                p.output_bytes[z, producer] * p.inverse_bandwidth_s_per_byte[z, home, device]
            )
            if p.has_backward[z]:
                rows.channel_load_s[row, p.channel[z, device, home]] += (
                    p.gradient_bytes[z, producer] * p.inverse_bandwidth_s_per_byte[z, device, home]
                )


@helper
def _return_s(p: Any, rows: Any, row: int, z: int, node: int, device: int) -> float:
    """From the end of a node's backward pass to the end of the step, if nothing has to wait."""
    longest_s = 0.0
    if p.has_backward[z]:
        for edge in range(p.producer_start[z, node], p.producer_start[z, node + 1]):
            producer = p.producers[z, edge]
            home = rows.devices[row, producer]
            back_s = rows.return_s[row, producer]
            if home != device:
                per_byte_s = p.inverse_bandwidth_s_per_byte[z, device, home]
                back_s += p.gradient_bytes[z, producer] * per_byte_s + p.latency_s[z, device, home]
            longest_s = max(longest_s, back_s)
    return longest_s


@helper
def _observe_row(
    p: Any, guides: Any, rows: Any, view: Any, row: int, found: Any, channels: Any
) -> bool:
    z, node = rows.problem[row], rows.position[row]
    g, state, any_allowed = one_graph(p, z), _simulation(rows, row), False
    take_candidates(view, row)
    view.node[row] = node
    allow_devices(p, guides, rows, row, view.allowed[row])
    for device in range(p.num_devices[z]):
        if not view.allowed[row, device]:
            continue
        any_allowed, forward_s = True, p.forward_s[z, node, device]
        start_s = start_if_placed(g, node, device, rows.devices[row], state, channels)
        out = found[device]
        out[_FINISH] = start_s + forward_s
        back_s = _return_s(p, rows, row, z, node, device) + p.backward_s[z, node, device]
        out[_RETURN] = back_s
        out[_THROUGH] = start_s + forward_s + guides.round_trip_s[z, node, device] + back_s
        _look_at_inputs(p, rows, row, z, node, device, out)
    _observe_devices(p, guides, rows, view, row, found)
    return any_allowed


@helper
def _look_at_inputs(p: Any, rows: Any, row: int, z: int, node: int, device: int, out: Any) -> None:
    """Seconds of the transfers, there and back, that the device would need; share it has."""
    transfer_s, all_bytes, here_bytes = 0.0, 0.0, 0.0
    for edge in range(p.producer_start[z, node], p.producer_start[z, node + 1]):
        producer: Any = np.int64(p.producers[z, edge])
        size = p.output_bytes[z, producer]
        all_bytes += size
        if (rows.copies[row, producer] >> device) & 1:
            here_bytes += size
        else:
            source: Any = np.int64(rows.devices[row, producer])
            transfer_s += there_and_back_s(p, z, producer, source, device)
    out[_TRANSFER] = transfer_s
    out[_SHARED] = ratio(here_bytes, all_bytes)


@helper
def _sibling_share(p: Any, rows: Any, row: int, z: int, node: int, device: int) -> float:
    """Of what the node's consumers read from other placed nodes, the share that is on a device."""
    all_bytes, here_bytes = 0.0, 0.0
    for edge in range(p.consumer_start[z, node], p.consumer_start[z, node + 1]):
        consumer = p.consumers[z, edge]
        for other in range(p.producer_start[z, consumer], p.producer_start[z, consumer + 1]):
            producer = p.producers[z, other]
            if producer < node:
                all_bytes += p.output_bytes[z, producer]
                if (rows.copies[row, producer] >> device) & 1:
                    here_bytes += p.output_bytes[z, producer]
    return ratio(here_bytes, all_bytes)


@helper
def _observe_devices(p: Any, guides: Any, rows: Any, view: Any, row: int, found: Any) -> None:
    """Compares the allowed devices with each other."""
    z, node = rows.problem[row], rows.position[row]
    finish_s, return_s, through_s, least_s = np.inf, np.inf, np.inf, np.inf
    load_s, free_s, remaining_s, channel_s = 0.0, 0.0, np.inf, 0.0
    all_bytes, left_bytes = 0.0, 0.0
    for device in range(p.num_devices[z]):
        load_s = max(load_s, rows.load_s[row, device])
        free_s = max(free_s, rows.free_s[row, device])
        remaining_s = min(remaining_s, guides.remaining_s[z, node + 1, device])
        all_bytes += p.device_memory_bytes[z, device]
        left_bytes += p.device_memory_bytes[z, device] - rows.memory_bytes[row, device]
        if view.allowed[row, device]:
            finish_s = min(finish_s, found[device, _FINISH])
            return_s = min(return_s, found[device, _RETURN])
            through_s = min(through_s, found[device, _THROUGH])
            least_s = min(least_s, seconds_of(p, z, node, device))
    for channel in range(p.num_channels[z]):
        channel_s = max(channel_s, rows.channel_load_s[row, channel])
    over_all = _OverAll(
        finish_s, return_s, through_s, least_s, load_s, free_s, remaining_s, channel_s, all_bytes,
        left_bytes,
    )  # fmt: skip
    for device in range(p.num_devices[z]):
        if view.allowed[row, device]:
            out = view.candidates[row, device]
            _observe_device(p, guides, rows, row, device, found[device], over_all, out)
    _observe_state(p, guides, rows, row, over_all, view.state[row])


@helper
def _observe_device(
    p: Any, guides: Any, rows: Any, row: int, device: int, found: Any, over_all: Any, out: Any
) -> None:
    z, node = rows.problem[row], rows.position[row]
    devices, scale = p.num_devices[z], guides.reference_s[z]
    seconds = seconds_of(p, z, node, device)
    limit = p.device_memory_bytes[z, device]
    held = rows.memory_bytes[row, device]
    own_free_s = rows.free_s[row, device]
    backlog_s, outgoing_s, send_s = 0.0, 0.0, 0.0
    for target in range(devices):
        if target != device:
            channel = p.channel[z, device, target]
            backlog_s = max(backlog_s, rows.channel_free_s[row, channel] - found[_FINISH])
            outgoing_s = max(outgoing_s, rows.channel_load_s[row, channel])
            send_s += there_and_back_s(p, z, node, device, target)
    stay_s, trip_s = guides.stay_s[z, node, device], guides.round_trip_s[z, node, device]
    later_s = guides.remaining_s[z, node + 1, device]
    out[0] = 1.0
    out[1] = ratio(4.0 * (found[_FINISH] - over_all.finish_s), scale)
    out[2] = ratio(found[_FINISH], scale)
    out[3] = log_ratio(seconds, over_all.least_s)
    out[4] = ratio(8.0 * seconds, scale)
    out[5] = ratio(found[_THROUGH], scale)
    out[6] = ratio(4.0 * (found[_THROUGH] - over_all.through_s), scale)
    out[7] = ratio(rows.load_s[row, device] + seconds, scale)
    out[8] = ratio(2.0 * (rows.load_s[row, device] + seconds - over_all.load_s), scale)
    out[9] = ratio(8.0 * (found[_FINISH] - p.forward_s[z, node, device] - own_free_s), scale)
    out[10] = ratio(8.0 * backlog_s, scale)
    out[11] = ratio(held + p.memory_bytes[z, node], limit)
    out[12] = ratio(4.0 * found[_TRANSFER], scale)
    out[13] = found[_SHARED]
    out[14] = ratio(later_s, scale * devices)
    out[15] = ratio(4.0 * send_s, scale * max(1, devices - 1))
    out[16] = ratio(limit - held, guides.remaining_bytes[z, node])
    out[17] = 1.0 if found[_FINISH] <= over_all.finish_s else 0.0
    out[18] = 1.0 if found[_THROUGH] <= over_all.through_s else 0.0
    out[19] = ratio(4.0 * (found[_RETURN] - over_all.return_s), scale)
    out[20] = _sibling_share(p, rows, row, z, node, device)
    out[21] = log_ratio(later_s, over_all.remaining_s)
    out[22] = ratio(limit * devices, 4.0 * over_all.all_bytes)
    out[23] = ratio(outgoing_s, scale)
    out[24] = ratio(own_free_s, scale)
    out[25] = ratio(2.0 * (own_free_s - over_all.free_s), scale)
    out[26] = ratio(stay_s - trip_s, scale)
    out[27] = ratio(found[_FINISH] + stay_s + found[_RETURN], scale)


@helper
def _observe_state(p: Any, guides: Any, rows: Any, row: int, over_all: Any, out: Any) -> None:
    z, node = rows.problem[row], rows.position[row]
    nodes, devices, scale = p.num_nodes[z], p.num_devices[z], guides.reference_s[z]
    node_features = guides.node_features[z, node]
    out[0] = node / nodes
    out[1] = ratio(over_all.finish_s, scale)
    out[2] = ratio(over_all.through_s, scale)
    out[3] = ratio(rows.longest_s[row], scale)
    out[4] = node_features[10]
    out[5] = node_features[11]
    out[6] = devices / 8.0
    out[7] = ratio(nodes, 64.0)
    out[8] = node_features[5]
    out[9] = ratio(guides.remaining_bytes[z, 0], over_all.all_bytes)
    out[10] = ratio(guides.remaining_bytes[z, node], over_all.left_bytes)
    out[11] = ratio(over_all.load_s, scale)
    out[12] = ratio(guides.remaining_least_s[z, node], scale * devices)
    out[13] = node_features[4]
    out[14] = node_features[3]
    out[15] = ratio(over_all.channel_s, scale)
    out[16] = ratio(p.num_channels[z] - devices, 4.0)
    out[17] = ratio(over_all.free_s, scale)
