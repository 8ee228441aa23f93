"""The simulator of graph placements: who waits for what, in one sweep forward and one back.

A device runs its nodes one after another: the forward passes in the order of the nodes, then the
backward passes in the reverse order. A node begins when its device is free and its inputs are
there.

- Forward: an output goes once to each other device that reads it. The transfer is asked for by the
  first node there that reads it: a channel carries transfers in the order of the reading nodes
  (of one node: in the order of its producers). It occupies its channel for bytes over bandwidth,
  and arrives a latency later.
- Backward: a device that got an output sends one gradient back, the sum over its readers, as soon
  as the last of them, which is the first in the order of the nodes, is done. A channel carries
  these in the order in which the backward passes run (of one node: the last producer first). A
  node's backward pass waits for the gradients of all readers.

Times are exact for these rules: they fix the order on every device and channel, so no event can
come before another in any other way, and one pass over the nodes replaces a queue of events.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats
from heterps_envs.compiled import compiled, kernel
from heterps_envs.graphs.problem import GraphProblems, GraphTables, Placement, pack_graphs


class GraphRow(NamedTuple):
    """What the simulation of one placement, complete or not, remembers.

    Attributes:
        arrival_s: (V, D) when a node's output is on a device; only where `copies` says so.
        copies: (V,) bit d: the output is, or will be, on device d.
        is_sent: (E,) whether the edge made a transfer (no other reader on that device did before).
        gradient_s: (V,) when all gradients of the node's output have arrived.
        start_s, finish_s: (2, V) of the forward and the backward pass of each node.
        free_s: (D,) when a device is free.
        channel_free_s: (C,) when a channel is free.
    """

    arrival_s: Floats
    copies: NDArray[np.int32]
    is_sent: NDArray[np.bool_]
    gradient_s: Floats
    start_s: Floats
    finish_s: Floats
    free_s: Floats
    channel_free_s: Floats


class OneGraph(NamedTuple):
    """The arrays of `GraphProblems` that a simulation reads, of one problem; see `one_graph`."""

    num_nodes: int
    num_devices: int
    num_channels: int
    has_backward: bool
    forward_s: Floats
    backward_s: Floats
    output_bytes: Floats
    gradient_bytes: Floats
    producer_start: NDArray[np.int32]
    producers: NDArray[np.int32]
    latency_s: Floats
    inverse_bandwidth_s_per_byte: Floats
    channel: NDArray[np.int32]


@dataclass(frozen=True)
class GraphRun:
    """One simulated step.

    Attributes:
        step_time_s: When all is done; inf if a device holds more than its memory, or cannot run
            one of its nodes.
        start_s: (2, V) when the forward (0) and the backward pass (1) of each node begin; the
            second row is nan where there is no backward pass.
        finish_s: (2, V) when they end.
        memory_bytes: (D,) held by each device.
        fits: Whether no device holds more than its memory.
    """

    step_time_s: float
    start_s: Floats
    finish_s: Floats
    memory_bytes: Floats
    fits: bool


def simulate_graph(tables: GraphTables, devices: Placement) -> GraphRun:
    """Simulates one step of a placement.

    Args:
        tables: The problem.
        devices: (V,) the device of each node.
    """
    problems = pack_graphs([tables])
    row = empty_row(problems)
    devices = np.asarray(devices, np.int16)
    step_time_s = float(step_time_of(problems, 0, devices, row))
    memory = np.zeros(tables.num_devices)
    np.add.at(memory, devices, tables.memory_bytes)
    fits = bool((memory <= tables.device_memory_bytes).all())
    if not tables.has_backward:
        row.start_s[1] = row.finish_s[1] = np.nan
    return GraphRun(
        step_time_s=step_time_s if fits else np.inf,
        start_s=row.start_s,
        finish_s=row.finish_s,
        memory_bytes=memory,
        fits=fits,
    )


def graph_step_times(
    problems: GraphProblems,
    rows: NDArray[np.int64],
    devices: Placement,
    step_time_s: Floats,
    overflow: Floats,
) -> None:
    """Simulates many placements.

    Args:
        problems: N problems.
        rows: (K,) the problem of each placement.
        devices: (K, V) int16.
        step_time_s: (K,) written to: seconds as if memory had no end; inf where a device cannot run
            one of its nodes.
        overflow: (K,) written to: the sum over devices of the share by which memory is exceeded; 0:
            the placement fits.
    """
    _step_times(problems, rows, devices, step_time_s, overflow, empty_row(problems))


def graph_cost(step_time_s: Floats, overflow: Floats) -> Floats:
    """What searches minimise: the step time, made worse the less a placement fits."""
    return np.where(overflow > 0, step_time_s * (2 + overflow), step_time_s)


def empty_row(problems: GraphProblems) -> GraphRow:
    """Room for one simulation of any problem."""
    nodes, devices = problems.max_nodes, problems.max_devices
    return GraphRow(
        arrival_s=np.zeros((nodes, devices)),
        copies=np.zeros(nodes, np.int32),
        is_sent=np.zeros(problems.producers.shape[1], np.bool_),
        gradient_s=np.zeros(nodes),
        start_s=np.zeros((2, nodes)),
        finish_s=np.zeros((2, nodes)),
        free_s=np.zeros(devices),
        channel_free_s=np.zeros(problems.max_channels),
    )


@kernel
def _step_times(p: Any, rows: Any, devices: Any, step_time_s: Any, overflow: Any, row: Any) -> None:
    for index in range(len(rows)):
        z = rows[index]
        step_time_s[index] = step_time_of(p, z, devices[index], row)
        overflow[index] = overflow_of(p, z, devices[index], row.free_s)


@compiled(error_model="numpy", inline="always")
def overflow_of(p: Any, z: int, devices: Any, memory: Any) -> float:
    """The sum over devices of the share by which memory is exceeded; `memory` (D,) is scratch."""
    for device in range(p.num_devices[z]):
        memory[device] = 0.0
    for node in range(p.num_nodes[z]):
        memory[devices[node]] += p.memory_bytes[z, node]
    exceeded = 0.0
    for device in range(p.num_devices[z]):
        if memory[device] > p.device_memory_bytes[z, device]:
            exceeded += memory[device] / p.device_memory_bytes[z, device] - 1.0
    return exceeded


@compiled(error_model="numpy", inline="always")
def unsigned(index: int) -> Any:
    """An index that is not negative. Numba need not look for its sign: a third of all the time."""
    return np.uint32(index)


@compiled(error_model="numpy", inline="always")
def one_graph(p: Any, z: int) -> Any:
    """Views of one row of `GraphProblems`, as an `OneGraph`."""
    return OneGraph(
        p.num_nodes[z],
        p.num_devices[z],
        p.num_channels[z],
        p.has_backward[z],
        p.forward_s[z],
        p.backward_s[z],
        p.output_bytes[z],
        p.gradient_bytes[z],
        p.producer_start[z],
        p.producers[z],
        p.latency_s[z],
        p.inverse_bandwidth_s_per_byte[z],
        p.channel[z],
    )


@kernel
def step_time_of(p: Any, z: int, devices: Any, row: Any) -> float:
    """Seconds of one step, whether memory holds it or not.

    Args:
        p: `GraphProblems`.
        z: Row of the problem.
        devices: (V,) device of each node.
        row: `GraphRow`, written to.
    """
    g = one_graph(p, z)
    clear_row(g, row)
    for node in range(unsigned(g.num_nodes)):
        place_forward(g, node, unsigned(devices[node]), devices, row)
    return end_of_step(g, devices, row)


@compiled(error_model="numpy", inline="always")
def end_of_step(g: Any, devices: Any, row: Any) -> float:
    """Runs all backward passes, if there are any; returns when the last device is done."""
    if g.has_backward:
        run_backward(g, devices, row)
    end_s = 0.0
    for device in range(g.num_devices):
        end_s = max(end_s, row.free_s[device])
    return end_s


@compiled(error_model="numpy", inline="always")
def clear_row(g: Any, row: Any) -> None:
    """Takes a simulation back to its begin; nodes overwrite what is kept for each of them."""
    for device in range(g.num_devices):
        row.free_s[device] = 0.0
    for channel in range(g.num_channels):
        row.channel_free_s[channel] = 0.0


@compiled(error_model="numpy", inline="always")
def place_forward(g: Any, node: Any, device: Any, devices: Any, row: Any) -> float:
    """Runs the forward pass of the next node on a device; returns when it ends.

    Args:
        g: `OneGraph`.
        node: The next node, unsigned.
        device: Where it runs, unsigned.
        devices: (V,) devices of all nodes before it.
        row: `GraphRow` after the nodes before it.
    """
    start_s = row.free_s[device]
    first, stop = unsigned(g.producer_start[node]), unsigned(g.producer_start[node + unsigned(1)])
    for edge in range(first, stop):
        producer = unsigned(g.producers[edge])
        is_sent = (row.copies[producer] >> device) & 1 == 0
        row.is_sent[edge] = is_sent
        if is_sent:
            source = unsigned(devices[producer])
            channel = unsigned(g.channel[source, device])
            busy_s = g.output_bytes[producer] * g.inverse_bandwidth_s_per_byte[source, device]
            sent_s = max(row.arrival_s[producer, source], row.channel_free_s[channel]) + busy_s
            row.channel_free_s[channel] = sent_s
            row.arrival_s[producer, device] = sent_s + g.latency_s[source, device]
            row.copies[producer] |= 1 << device
        start_s = max(start_s, row.arrival_s[producer, device])
    finish_s = start_s + g.forward_s[node, device]
    row.start_s[0, node] = start_s
    row.finish_s[0, node] = finish_s
    row.arrival_s[node, device] = finish_s
    row.free_s[device] = finish_s
    row.copies[node] = 1 << device
    row.gradient_s[node] = 0.0
    return finish_s  # type: ignore[no-any-return]


@compiled(error_model="numpy", inline="always")
def run_backward(g: Any, devices: Any, row: Any) -> None:
    """Runs the backward pass of all nodes after all of them have run forward."""
    node = unsigned(g.num_nodes)
    while node > 0:
        node -= unsigned(1)
        place_backward(g, node, unsigned(devices[node]), devices, row)


@compiled(error_model="numpy", inline="always")
def place_backward(g: Any, node: Any, device: Any, devices: Any, row: Any) -> None:
    """Runs the backward pass of the next node, of those that are left the last one.

    Args:
        g: `OneGraph`.
        node: The node, unsigned.
        device: Where it runs, unsigned.
        devices: (V,) devices of all nodes.
        row: `GraphRow` after the backward passes of the nodes behind it.
    """
    start_s = max(row.free_s[device], row.gradient_s[node])
    finish_s = start_s + g.backward_s[node, device]
    row.start_s[1, node] = start_s
    row.finish_s[1, node] = finish_s
    row.free_s[device] = finish_s
    first = unsigned(g.producer_start[node])
    edge = unsigned(g.producer_start[node + unsigned(1)])
    while edge > first:
        edge -= unsigned(1)
        producer = unsigned(g.producers[edge])
        home = unsigned(devices[producer])
        if home == device:
            row.gradient_s[producer] = max(row.gradient_s[producer], finish_s)
        elif row.is_sent[edge]:
            # The first reader on this device sends the sum over all of them.
            channel = unsigned(g.channel[device, home])
            per_byte_s = g.inverse_bandwidth_s_per_byte[device, home]
            sent_s = max(finish_s, row.channel_free_s[channel])
            sent_s += g.gradient_bytes[producer] * per_byte_s
            row.channel_free_s[channel] = sent_s
            arrival_s = sent_s + g.latency_s[device, home]
            row.gradient_s[producer] = max(row.gradient_s[producer], arrival_s)
