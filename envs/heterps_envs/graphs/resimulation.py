"""The graph simulator, for a placement that differs a little from one that was simulated before.

A search asks of most placements only whether they are better than some limit. Three things answer
that without a whole simulation, and none of them changes a single bit of a step time:

- The nodes before the first that moved run forward as before: the simulation goes on from a
  snapshot in front of it.
- A device has its work still to do: when it is free, plus that, is no later than the end.
- The backward passes of the nodes before the first that moved follow each other as before. How long
  they take after any of the times at which they begin is known (`_put_tails`), so the end of the
  step is known when the first of them begins, up to rounding.

So a simulation ends as soon as it is sure to end after the limit; otherwise it runs to its end.
Snapshots and tails are kept in front of every `BLOCK`-th node.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats
from heterps_envs.compiled import compiled, uncounted
from heterps_envs.graphs.problem import GraphProblems
from heterps_envs.graphs.simulator import (
    GraphRow,
    empty_row,
    place_backward,
    place_forward,
    unsigned,
)

BLOCK = 16
# Bounds add the same seconds in another order than the simulator does; what is closer to the limit
# than this is simulated.
ROUNDING = 1e-9


class Blocks(NamedTuple):
    """A simulated placement in K blocks, and what it says of placements that are like it.

    Attributes:
        live_start: (K + 2,) `live[live_start[k]:live_start[k + 1]]` are the nodes before block k
            that a node in or behind it reads.
        live: (L,).
        kept: The simulation of the placement, forward.
        tried: That of another placement.
        free_s: (K + 1, D) when devices are free in front of a block, forward.
        channel_free_s: (K + 1, C) the same of channels.
        copies: (L,) where outputs are in front of a block, for each entry of `live`.
        work_s: (K + 1, D) seconds of compute that a device has left in front of a block, forward.
        backward_work_s: (K + 1, D) backward seconds of the nodes before a block.
        device_tail_s: (K + 1, D) from a device being free to the end of the step, when only the
            nodes before a block are left to run backward.
        channel_tail_s: (K + 1, C) the same of channels.
        node_tail_s: (V,) from the begin of a node's backward pass to the end of the step.
        change_s: (2, D) scratch: compute that moved nodes add to a device, both passes and the
            backward pass alone.
    """

    live_start: NDArray[np.int32]
    live: NDArray[np.int32]
    kept: GraphRow
    tried: GraphRow
    free_s: Floats
    channel_free_s: Floats
    copies: NDArray[np.int32]
    work_s: Floats
    backward_work_s: Floats
    device_tail_s: Floats
    channel_tail_s: Floats
    node_tail_s: Floats
    change_s: Floats


def empty_blocks(problems: GraphProblems, row: int) -> Blocks:
    """Room for the simulations of one problem; `keep_placement` fills it."""
    nodes, devices = int(problems.num_nodes[row]), problems.max_devices
    count = -(-nodes // BLOCK)
    starts = problems.consumer_start[row]
    # The last node that reads each output; the node itself where none does.
    last = np.arange(nodes)
    for node in np.flatnonzero(np.diff(starts[: nodes + 1])):
        last[node] = problems.consumers[row, starts[node] : starts[node + 1]].max()
    live = [
        np.flatnonzero(last[: block * BLOCK] >= min(block * BLOCK, nodes))
        for block in range(count + 1)
    ]
    by_device, by_channel = (count + 1, devices), (count + 1, problems.max_channels)
    return Blocks(
        live_start=np.cumsum([0, *map(len, live)]).astype(np.int32),
        live=np.concatenate(live).astype(np.int32),
        kept=empty_row(problems),
        tried=empty_row(problems),
        free_s=np.zeros(by_device),
        channel_free_s=np.zeros(by_channel),
        copies=np.zeros(sum(map(len, live)), np.int32),
        work_s=np.zeros(by_device),
        backward_work_s=np.zeros(by_device),
        device_tail_s=np.zeros(by_device),
        channel_tail_s=np.zeros(by_channel),
        node_tail_s=np.zeros(problems.max_nodes),
        change_s=np.zeros((2, devices)),
    )


@compiled(error_model="numpy", inline="always")
def _live(blocks: Any, block: int) -> Any:
    start = unsigned(blocks.live_start[unsigned(block)])
    return range(start, unsigned(blocks.live_start[unsigned(block + 1)]))


@uncounted
def step_time_within(
    g: Any, devices: Any, kept_devices: Any, changed: Any, count: int, limit_s: float, blocks: Any
) -> float:
    """Seconds of one step as `step_time_of` has them; inf if they are more than the limit.

    Args:
        g: `OneGraph`.
        devices: (V,) device of each node.
        kept_devices: (V,) those of the placement that `blocks` keep.
        changed: The nodes where they differ come first, each once and in any order; maybe also some
            where they do not.
        count: How many of these are meant, at least one.
        limit_s: A step time.
        blocks: `Blocks` of another placement; only `tried` and scratch are written to.
    """
    # One long function: numba counts references to all arrays of a tuple where it calls another.
    row, change_s = blocks.tried, blocks.change_s
    late_s, is_late = limit_s * (1.0 + ROUNDING), False
    free_s, work_s, backward_work_s = row.free_s, blocks.work_s, blocks.backward_work_s
    by_device = unsigned(g.num_devices)
    for device in range(by_device):
        change_s[0, device] = change_s[1, device] = 0.0
    first, last = changed[0], changed[0]
    for index in range(unsigned(count)):
        node = unsigned(changed[index])
        first, last = min(first, changed[index]), max(last, changed[index])
        home, device = unsigned(kept_devices[node]), unsigned(devices[node])
        change_s[0, home] -= g.forward_s[node, home] + g.backward_s[node, home]
        change_s[0, device] += g.forward_s[node, device] + g.backward_s[node, device]
        change_s[1, home] -= g.backward_s[node, home]
        change_s[1, device] += g.backward_s[node, device]
    for device in range(by_device):
        is_late |= work_s[0, device] + change_s[0, device] > late_s
    # Back to what was in front of the block of the first node that moved.
    nodes, block, unchanged = unsigned(g.num_nodes), unsigned(first // BLOCK), last // BLOCK + 1
    begin = nodes if is_late else unsigned(block * BLOCK)
    live_start = unsigned(blocks.live_start[block])
    live_stop = live_start if is_late else unsigned(blocks.live_start[block + unsigned(1)])
    for device in range(by_device):
        free_s[device] = blocks.free_s[block, device]
    for channel in range(unsigned(g.num_channels)):
        row.channel_free_s[channel] = blocks.channel_free_s[block, channel]
    for node in range(unsigned(0) if is_late else begin):
        row.gradient_s[node] = 0.0
    for index in range(live_start, live_stop):
        node = unsigned(blocks.live[index])
        row.copies[node] = blocks.copies[index]
        for device in range(by_device):
            row.arrival_s[node, device] = blocks.kept.arrival_s[node, device]

    stop = begin
    while stop < nodes and not is_late:
        start, stop = stop, unsigned(min(nodes, stop + unsigned(BLOCK)))
        for node in range(start, stop):
            place_forward(g, node, unsigned(devices[node]), devices, row)
        place = unsigned((stop + BLOCK - 1) // BLOCK)
        if place >= unchanged:
            for device in range(by_device):
                left_s = work_s[place, device] + change_s[1, device]
                is_late |= free_s[device] + left_s > late_s
    if g.has_backward:
        while stop > begin and not is_late:
            place = unsigned((stop + BLOCK - 1) // BLOCK - 1)
            node, stop = stop, unsigned(place * BLOCK)
            while node > stop:
                node -= unsigned(1)
                place_backward(g, node, unsigned(devices[node]), devices, row)
            if place >= unchanged:
                for device in range(by_device):
                    left_s = backward_work_s[place, device] + change_s[1, device]
                    is_late |= free_s[device] + left_s > late_s
        if begin > unsigned(0) and not is_late:
            # What is left follows as it did; when it ends is known, up to rounding.
            for device in range(by_device):
                is_late |= free_s[device] + blocks.device_tail_s[block, device] > late_s
            for channel in range(unsigned(g.num_channels)):
                tail_s = blocks.channel_tail_s[block, channel]
                is_late |= row.channel_free_s[channel] + tail_s > late_s
            for index in range(live_start, live_stop):
                node = unsigned(blocks.live[index])
                is_late |= row.gradient_s[node] + blocks.node_tail_s[node] > late_s
            if not is_late:
                for edge in range(unsigned(g.producer_start[begin])):
                    row.is_sent[edge] = blocks.kept.is_sent[edge]
                node = begin
                while node > unsigned(0):
                    node -= unsigned(1)
                    place_backward(g, node, unsigned(devices[node]), devices, row)
    step_time_s = 0.0
    for device in range(by_device):
        step_time_s = max(step_time_s, free_s[device])
    return np.inf if is_late or step_time_s > limit_s else step_time_s


@uncounted
def keep_placement(g: Any, devices: Any, first: int, blocks: Any) -> None:
    """Simulates a placement and keeps it as the one that others are compared with.

    Args:
        g: `OneGraph`.
        devices: (V,) device of each node.
        first: The first node that is not where it is in the placement that was kept so far; 0 if
            there was none.
        blocks: `Blocks`, written to.
    """
    row, block = blocks.kept, first // BLOCK
    for device in range(unsigned(g.num_devices)):
        row.free_s[device] = blocks.free_s[unsigned(block), device]
    for channel in range(unsigned(g.num_channels)):
        row.channel_free_s[channel] = blocks.channel_free_s[unsigned(block), channel]
    for index in _live(blocks, block):
        row.copies[unsigned(blocks.live[index])] = blocks.copies[index]
    node = unsigned(block * BLOCK)
    for place in range(block, len(blocks.live_start) - 2):
        for device in range(unsigned(g.num_devices)):
            blocks.free_s[unsigned(place), device] = row.free_s[device]
        for channel in range(unsigned(g.num_channels)):
            blocks.channel_free_s[unsigned(place), channel] = row.channel_free_s[channel]
        for index in _live(blocks, place):
            blocks.copies[index] = row.copies[unsigned(blocks.live[index])]
        stop = unsigned(min(g.num_nodes, (place + 1) * BLOCK))
        while node < stop:
            place_forward(g, node, unsigned(devices[node]), devices, row)
            node += unsigned(1)
    _put_work(g, devices, blocks)
    if g.has_backward:
        _put_tails(g, devices, block, blocks)


@compiled(error_model="numpy", inline="always")
def _put_work(g: Any, devices: Any, blocks: Any) -> None:
    """What devices have to compute from each block on, and backward before it."""
    nodes, count = g.num_nodes, len(blocks.live_start) - 2
    work_s, backward_s = blocks.work_s, blocks.backward_work_s
    for place in range(1, count + 1):
        for device in range(unsigned(g.num_devices)):
            backward_s[unsigned(place), device] = backward_s[unsigned(place - 1), device]
        for node in range(unsigned((place - 1) * BLOCK), unsigned(min(nodes, place * BLOCK))):
            device = unsigned(devices[node])
            backward_s[unsigned(place), device] += g.backward_s[node, device]
    for device in range(unsigned(g.num_devices)):
        work_s[unsigned(count), device] = backward_s[unsigned(count), device]
    for place in range(count - 1, -1, -1):
        for device in range(unsigned(g.num_devices)):
            work_s[unsigned(place), device] = work_s[unsigned(place + 1), device]
        for node in range(unsigned(place * BLOCK), unsigned(min(nodes, (place + 1) * BLOCK))):
            device = unsigned(devices[node])
            work_s[unsigned(place), device] += g.forward_s[node, device]


@compiled(error_model="numpy", inline="always")
def _put_tails(g: Any, devices: Any, block: int, blocks: Any) -> None:
    """How long the step goes on after each event of the backward pass, from a block on.

    The mirror image of `place_backward`: nodes and edges in the opposite order.
    """
    device_tail_s, channel_tail_s = blocks.device_tail_s, blocks.channel_tail_s
    node_tail_s, is_sent = blocks.node_tail_s, blocks.kept.is_sent
    for place in range(block, len(blocks.live_start) - 2):
        for index in range(unsigned(g.num_devices)):
            device_tail_s[unsigned(place + 1), index] = device_tail_s[unsigned(place), index]
        for index in range(unsigned(g.num_channels)):
            channel_tail_s[unsigned(place + 1), index] = channel_tail_s[unsigned(place), index]
        stop = min(g.num_nodes, (place + 1) * BLOCK)
        for node in range(unsigned(place * BLOCK), unsigned(stop)):
            device = unsigned(devices[node])
            tail_s = device_tail_s[unsigned(place + 1), device]
            first = unsigned(g.producer_start[node])
            for edge in range(first, unsigned(g.producer_start[node + unsigned(1)])):
                producer = unsigned(g.producers[edge])
                home = unsigned(devices[producer])
                if home == device:
                    tail_s = max(tail_s, node_tail_s[producer])
                elif is_sent[edge]:
                    channel = unsigned(g.channel[device, home])
                    arrived_s = g.latency_s[device, home] + node_tail_s[producer]
                    sending_s = max(channel_tail_s[unsigned(place + 1), channel], arrived_s)
                    per_byte_s = g.inverse_bandwidth_s_per_byte[device, home]
                    sending_s += g.gradient_bytes[producer] * per_byte_s
                    channel_tail_s[unsigned(place + 1), channel] = sending_s
                    tail_s = max(tail_s, sending_s)
            node_tail_s[node] = g.backward_s[node, device] + tail_s
            device_tail_s[unsigned(place + 1), device] = node_tail_s[node]
