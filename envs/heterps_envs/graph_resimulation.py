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
from numba import njit
from numpy.typing import NDArray

from heterps_envs.graph_problem import GraphProblems
from heterps_envs.graph_simulator import (
    Floats,
    GraphRow,
    clear_row,
    empty_row,
    one_graph,
    place_backward,
    place_forward,
    unsigned,
)

BLOCK = 8
# Bounds add the same seconds in another order than the simulator does; what is closer to the limit
# than this is simulated.
ROUNDING = 1e-9


class Snapshots(NamedTuple):
    """A simulation, and what it was in front of each of K blocks (and behind the last one).

    Attributes:
        row: The simulation.
        free_s: (K + 1, D) when devices are free, forward.
        channel_free_s: (K + 1, C) the same of channels.
        copies: (L,) where outputs are, for each entry of `Blocks.live`.
    """

    row: GraphRow
    free_s: Floats
    channel_free_s: Floats
    copies: NDArray[np.int32]


class Blocks(NamedTuple):
    """A simulated placement, its snapshots, and what they say of placements that are like it.

    Attributes:
        live_start: (K + 2,) `live[live_start[k]:live_start[k + 1]]` are the nodes before block k
            that a node in or behind it reads.
        live: (L,).
        kept: Of the placement.
        tried: Of the placement that is simulated now.
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
    kept: Snapshots
    tried: Snapshots
    work_s: Floats
    backward_work_s: Floats
    device_tail_s: Floats
    channel_tail_s: Floats
    node_tail_s: Floats
    change_s: Floats


def empty_blocks(problems: GraphProblems, row: int) -> Blocks:
    """Room for the simulations of one problem; `simulate_blocks` fills it."""
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
    size = sum(map(len, live))
    by_device, by_channel = (count + 1, devices), (count + 1, problems.max_channels)

    def snapshots() -> Snapshots:
        return Snapshots(
            empty_row(problems),
            np.zeros(by_device),
            np.zeros(by_channel),
            np.zeros(size, np.int32),
        )

    return Blocks(
        live_start=np.cumsum([0, *map(len, live)]).astype(np.int32),
        live=np.concatenate(live).astype(np.int32),
        kept=snapshots(),
        tried=snapshots(),
        work_s=np.zeros(by_device),
        backward_work_s=np.zeros(by_device),
        device_tail_s=np.zeros(by_device),
        channel_tail_s=np.zeros(by_channel),
        node_tail_s=np.zeros(problems.max_nodes),
        change_s=np.zeros((2, devices)),
    )


@njit(cache=True, error_model="numpy")
def simulate_blocks(p: Any, z: int, devices: Any, blocks: Any) -> float:
    """Simulates a placement and keeps it as the one that others are like; returns its step time.

    Args:
        p: `GraphProblems`.
        z: Row of the problem.
        devices: (V,) device of each node.
        blocks: `Blocks`, written to.
    """
    g = one_graph(p, z)
    count = len(blocks.live_start) - 2
    clear_row(g, blocks.tried.row)
    _run_forward(g, devices, 0, count, np.inf, blocks)
    if g.has_backward:
        _run_backward(g, devices, 0, count + 1, np.inf, blocks)
    keep_tried(g, devices, 0, blocks)
    return _latest(g, blocks.tried.row)


@njit(cache=True, error_model="numpy")
def step_time_within(
    g: Any, devices: Any, kept_devices: Any, changed: Any, count: int, limit_s: float, blocks: Any
) -> float:
    """Seconds of one step as `step_time_of` has them; inf if they are more than the limit.

    Args:
        g: `OneGraph`.
        devices: (V,) device of each node.
        kept_devices: (V,) those of the placement that `blocks` keep.
        changed: The nodes where they differ, each once and in any order; maybe also some
            where they do not.
        count: How many of these are meant, at least one.
        limit_s: A step time.
        blocks: `Blocks`; only `tried` and scratch is written to. `keep_tried` keeps the placement,
            if it is within the limit.
    """
    first, last = changed[0], changed[0]
    change_s, limit_s_and_more = blocks.change_s, limit_s * (1.0 + ROUNDING)
    change_s[:, : g.num_devices] = 0.0
    for index in range(count):
        node = changed[index]
        first, last = min(first, node), max(last, node)
        home, device = kept_devices[node], devices[node]
        change_s[0, home] -= g.forward_s[node, home] + g.backward_s[node, home]
        change_s[0, device] += g.forward_s[node, device] + g.backward_s[node, device]
        change_s[1, home] -= g.backward_s[node, home]
        change_s[1, device] += g.backward_s[node, device]
    for device in range(g.num_devices):
        if blocks.work_s[0, device] + change_s[0, device] > limit_s_and_more:
            return np.inf
    block = first // BLOCK
    _go_back(g, devices, block, blocks)
    if not _run_forward(g, devices, block, last // BLOCK + 1, limit_s_and_more, blocks):
        return np.inf
    if g.has_backward and not _run_backward(
        g, devices, block, last // BLOCK + 1, limit_s_and_more, blocks
    ):
        return np.inf
    step_time_s = _latest(g, blocks.tried.row)
    return step_time_s if step_time_s <= limit_s else np.inf


@njit(cache=True, error_model="numpy", inline="always")
def _latest(g: Any, row: Any) -> float:
    end_s = 0.0
    for device in range(g.num_devices):
        end_s = max(end_s, row.free_s[device])
    return end_s


@njit(cache=True, error_model="numpy", inline="always")
def _go_back(g: Any, devices: Any, block: int, blocks: Any) -> None:
    """Takes the simulation that is tried to the snapshot in front of a block."""
    row, kept = blocks.tried.row, blocks.kept
    for device in range(g.num_devices):
        row.free_s[device] = kept.free_s[block, device]
    for channel in range(g.num_channels):
        row.channel_free_s[channel] = kept.channel_free_s[block, channel]
    row.gradient_s[: block * BLOCK] = 0.0
    for index in range(blocks.live_start[block], blocks.live_start[block + 1]):
        node = unsigned(blocks.live[index])
        row.copies[node] = kept.copies[index]
        for device in range(g.num_devices):
            row.arrival_s[node, device] = kept.row.arrival_s[node, device]


@njit(cache=True, error_model="numpy", inline="always")
def _run_forward(
    g: Any, devices: Any, block: int, unchanged: int, limit_s: float, blocks: Any
) -> bool:
    """Forward passes from a block on; False if the end of the step comes after the limit.

    From block `unchanged` on the devices have the nodes that they have in the kept placement.
    """
    tried, row = blocks.tried, blocks.tried.row
    for place in range(block, len(blocks.live_start) - 1):
        for device in range(g.num_devices):
            tried.free_s[place, device] = row.free_s[device]
            if place >= unchanged:
                left_s = blocks.work_s[place, device] + blocks.change_s[1, device]
                if row.free_s[device] + left_s > limit_s:
                    return False
        for channel in range(g.num_channels):
            tried.channel_free_s[place, channel] = row.channel_free_s[channel]
        for index in range(blocks.live_start[place], blocks.live_start[place + 1]):
            tried.copies[index] = row.copies[unsigned(blocks.live[index])]
        stop = min(g.num_nodes, (place + 1) * BLOCK)
        for node in range(unsigned(place * BLOCK), unsigned(stop)):
            place_forward(g, node, unsigned(devices[node]), devices, row)
    return True


@njit(cache=True, error_model="numpy", inline="always")
def _run_backward(
    g: Any, devices: Any, block: int, unchanged: int, limit_s: float, blocks: Any
) -> bool:
    """Backward passes of all nodes; False if the end comes after the limit.

    Nothing before `block` and nothing from `unchanged` on is another than in the kept placement.
    """
    row = blocks.tried.row
    for place in range(len(blocks.live_start) - 3, block - 1, -1):
        if place + 1 >= unchanged:
            for device in range(g.num_devices):
                left_s = blocks.backward_work_s[place + 1, device] + blocks.change_s[1, device]
                if row.free_s[device] + left_s > limit_s:
                    return False
        _run_backward_between(g, devices, place * BLOCK, min(g.num_nodes, (place + 1) * BLOCK), row)
    if block > 0:
        if _end_from(g, block, blocks) > limit_s:
            return False
        for edge in range(g.producer_start[block * BLOCK]):
            row.is_sent[edge] = blocks.kept.row.is_sent[edge]
        _run_backward_between(g, devices, 0, block * BLOCK, row)
    return True


@njit(cache=True, error_model="numpy")
def _run_backward_between(g: Any, devices: Any, first: int, stop: int, row: Any) -> None:
    node = unsigned(stop)
    while node > unsigned(first):
        node -= unsigned(1)
        place_backward(g, node, unsigned(devices[node]), devices, row)


@njit(cache=True, error_model="numpy", inline="always")
def _end_from(g: Any, block: int, blocks: Any) -> float:
    """When the step ends, up to rounding, if only what stands before a block is left."""
    row, end_s = blocks.tried.row, 0.0
    for device in range(g.num_devices):
        end_s = max(end_s, row.free_s[device] + blocks.device_tail_s[block, device])
    for channel in range(g.num_channels):
        end_s = max(end_s, row.channel_free_s[channel] + blocks.channel_tail_s[block, channel])
    for index in range(blocks.live_start[block], blocks.live_start[block + 1]):
        node = unsigned(blocks.live[index])
        end_s = max(end_s, row.gradient_s[node] + blocks.node_tail_s[node])
    return end_s


@njit(cache=True, error_model="numpy")
def keep_tried(g: Any, devices: Any, first: int, blocks: Any) -> None:
    """Keeps the placement whose simulation just came to its end.

    Args:
        g: `OneGraph`.
        devices: (V,) device of each node.
        first: The first node that is not where it is in the placement that was kept so far.
        blocks: `Blocks`.
    """
    block, kept, tried = first // BLOCK, blocks.kept, blocks.tried
    start, stop = blocks.live_start[block], blocks.live_start[block + 1]
    kept.free_s[block:] = tried.free_s[block:]
    kept.channel_free_s[block:] = tried.channel_free_s[block:]
    kept.copies[start:] = tried.copies[start:]
    for index in range(start, stop):
        node = blocks.live[index]
        kept.row.arrival_s[node] = tried.row.arrival_s[node]
    node, edge, last = block * BLOCK, g.producer_start[block * BLOCK], g.producer_start[g.num_nodes]
    kept.row.arrival_s[node : g.num_nodes] = tried.row.arrival_s[node : g.num_nodes]
    kept.row.is_sent[edge:last] = tried.row.is_sent[edge:last]
    _put_work(g, devices, blocks)
    if g.has_backward:
        _put_tails(g, devices, block, blocks)


@njit(cache=True, error_model="numpy")
def _put_work(g: Any, devices: Any, blocks: Any) -> None:
    """What devices have to compute from each block on, and backward before it."""
    count, work_s, backward_s = len(blocks.live_start) - 2, blocks.work_s, blocks.backward_work_s
    backward_s[0] = 0.0
    for place in range(count):
        backward_s[place + 1] = backward_s[place]
        for node in range(place * BLOCK, min(g.num_nodes, (place + 1) * BLOCK)):
            backward_s[place + 1, devices[node]] += g.backward_s[node, devices[node]]
    work_s[count] = backward_s[count]
    for place in range(count - 1, -1, -1):
        work_s[place] = work_s[place + 1]
        for node in range(place * BLOCK, min(g.num_nodes, (place + 1) * BLOCK)):
            work_s[place, devices[node]] += g.forward_s[node, devices[node]]


@njit(cache=True, error_model="numpy")
def _put_tails(g: Any, devices: Any, block: int, blocks: Any) -> None:
    """How long the step goes on after each event of the backward pass, from a block on.

    The mirror image of `place_backward`: nodes and edges in the opposite order.
    """
    device_tail_s, channel_tail_s = blocks.device_tail_s, blocks.channel_tail_s
    node_tail_s, is_sent = blocks.node_tail_s, blocks.kept.row.is_sent
    for place in range(block, len(blocks.live_start) - 2):
        device_tail_s[place + 1] = device_tail_s[place]
        channel_tail_s[place + 1] = channel_tail_s[place]
        of_device, of_channel = device_tail_s[place + 1], channel_tail_s[place + 1]
        for node in range(place * BLOCK, min(g.num_nodes, (place + 1) * BLOCK)):
            device = unsigned(devices[node])
            tail_s = of_device[device]
            for edge in range(g.producer_start[node], g.producer_start[node + 1]):
                producer = unsigned(g.producers[edge])
                home = unsigned(devices[producer])
                if home == device:
                    tail_s = max(tail_s, node_tail_s[producer])
                elif is_sent[edge]:
                    channel = unsigned(g.channel[device, home])
                    arrived_s = g.latency_s[device, home] + node_tail_s[producer]
                    sending_s = max(of_channel[channel], arrived_s)
                    per_byte_s = g.inverse_bandwidth_s_per_byte[device, home]
                    sending_s += g.gradient_bytes[producer] * per_byte_s
                    of_channel[channel] = sending_s
                    tail_s = max(tail_s, sending_s)
            node_tail_s[node] = g.backward_s[node, device] + tail_s
            of_device[device] = node_tail_s[node]
