"""What any stage needs, as arrays over layers and stage options: seconds, bytes, ways to the front.

All numbers are lower limits of what the simulator counts: every link is the fastest, a group has any
degree that some node has room for, and a layer holds only what it holds in any stage.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.cost_tables import CostTables
from heterps_envs.options import least_tables
from heterps_envs.problem import Problem


class Needs(NamedTuple):
    """L layers, O options, T classes; prefix sums have a row more than there are layers.

    Seconds are those of one full micro-batch; `unit` is the smallest one as a share of that.

    Attributes:
        total: Micro-batches of a step, in full ones.
        unit: The smallest micro-batch.
        are_equal: All micro-batches are equal, so that a device has a whole number of them.
        forward_s, backward_s, optimizer_s: (L + 1, O) prefix sums.
        reduce_s: (L + 1, O) prefix sums: gradients of a layer over the fastest link once.
        overlaps: Gradients may be summed beside the last backward pass.
        held_bytes: (L + 1, O) prefix sums: weights, and the least part of optimizer state.
        beside_bytes: (2, L + 1, O) prefix sums: gradients; what one micro-batch leaves. Either is
            there at some time.
        room_bytes: (O,) of one device.
        in_s, out_s: (L, T) the least seconds from the front to a stage that begins with the layer,
            and back: forward passes, gradients of inputs, and the message over the cut.
        around_s: (L + 1, T) the least seconds from the end of a forward pass of a stage that ends in
            front of the layer to its backward pass.
        class_of: (O,) class of an option.
        degree: (O,) devices of a group.
        count: (T,) devices of a class.
        begin_s: Before any pass, on every host.
    """

    total: float
    unit: float
    are_equal: bool
    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    reduce_s: Floats
    overlaps: bool
    held_bytes: Floats
    beside_bytes: Floats
    room_bytes: Floats
    in_s: Floats
    out_s: Floats
    around_s: Floats
    class_of: Integers
    degree: Integers
    count: Integers
    begin_s: float


def needs_of(problem: Problem) -> Needs:
    """The needs of a problem, for all that its strategy allows."""
    job, tables = problem.job, least_tables(problem)
    options = tables.stage_options
    sizes = np.array(job.micro_batch_sizes, float) / job.micro_batch_size
    unit = float(sizes.min())
    parts = min(len(sizes), int(tables.device_count.sum()))
    gradient, kinds = options.gradient_bytes, options.class_of_option
    links = _Links.of(problem)
    # Of a zero-bubble schedule only the passes that compute gradients of inputs are waited for, and
    # nothing here knows how long they are.
    waits = 0.0 if job.schedule == "zero-bubble" else 1.0
    optimizer = np.where(options.shards_state, tables.optimizer_s / parts, tables.optimizer_s)
    in_s, out_s, around_s = _ways(links, tables, unit, waits)
    return Needs(
        total=float(sizes.sum()),
        unit=unit,
        are_equal=bool(np.ptp(sizes) == 0),
        forward_s=_prefix(tables.forward_s),
        backward_s=_prefix(tables.backward_s),
        optimizer_s=_prefix(optimizer),
        reduce_s=_prefix(gradient * links.s_per_byte[kinds]),
        overlaps=job.overlaps_reduce is not False,
        held_bytes=_prefix(options.state_bytes + options.sharded_bytes / parts),
        beside_bytes=np.stack([_prefix(gradient), _prefix(options.activation_bytes * unit)]),
        room_bytes=np.ascontiguousarray(tables.memory_bytes, float),
        in_s=in_s,
        out_s=out_s,
        around_s=around_s,
        class_of=np.ascontiguousarray(options.class_of_option, np.int64),
        degree=np.ascontiguousarray(options.devices_of_option, np.int64),
        count=np.ascontiguousarray(tables.device_count, np.int64),
        begin_s=0.0,
    )


class _Links(NamedTuple):
    """(T,) the fastest link between a device of each class and any other device."""

    latency_s: Floats
    s_per_byte: Floats

    @classmethod
    def of(cls, problem: Problem) -> _Links:
        """Latencies are less what hosts take for a message: that keeps them busy."""
        tables = problem.bounding_tables
        hosts = [node.host for node in problem.cluster.nodes]
        host_s = max(host.send_s for host in hosts) + max(host.receive_s for host in hosts)
        is_other = tables.device_count + np.zeros((tables.num_classes, 1)) > 1
        is_other |= ~np.eye(tables.num_classes, dtype=bool)
        both = (tables.latency_s, tables.inverse_bandwidth_s_per_byte)
        least = [np.where(is_other, np.minimum(link, link.T), np.inf).min(axis=1) for link in both]
        latency_s, s_per_byte = (np.where(np.isfinite(each), each, 0.0) for each in least)
        return cls(np.maximum(latency_s - host_s, 0.0), s_per_byte)


def _ways(
    links: _Links, tables: CostTables, unit: float, waits: float
) -> tuple[Floats, Floats, Floats]:
    """`Needs.in_s`, `out_s` and `around_s`."""
    forward_s = _prefix(tables.forward_s.min(axis=1)[:, None])
    backward_s = _prefix(tables.backward_s.min(axis=1)[:, None]) * waits
    message_s = links.latency_s + unit * tables.output_bytes[:, None] * links.s_per_byte
    # (L + 1, T) over the cut in front of a layer; no message enters the model, or leaves it.
    message_s = np.concatenate([0 * message_s[:1], message_s])
    message_s[-1] = 0.0
    in_s = unit * forward_s[:-1] + message_s[:-1]
    out_s = (unit * backward_s[:-1] + message_s[:-1]) * waits
    behind = forward_s[-1] - forward_s + backward_s[-1] - backward_s
    return in_s, out_s, unit * behind + (1 + waits) * message_s


def _prefix(values: Floats) -> Floats:
    out = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=out[1:])
    return out
