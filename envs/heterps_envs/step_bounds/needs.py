"""What any stage needs, as arrays over layers and groups of devices: seconds, bytes, ways out.

All numbers are lower limits of what the simulator counts: every link is the fastest of its class, a
group has any degree that some node has room for, and where a strategy leaves open what a stage does
with activations and optimizer state, it takes the seconds of the fastest way and the bytes of the
smallest. (A stage may do it layer by layer, so that no single way is a limit of both.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.layer_costs.memory import LayerMemory
from heterps_envs.options import all_groups
from heterps_envs.problem import Problem


class Needs(NamedTuple):
    """L layers, O kinds of groups, T classes; prefix sums have a row more than there are layers.

    Seconds are those of one full micro-batch; `unit` is the smallest one as a share of that.

    Attributes:
        total: Micro-batches of a step, in full ones.
        unit: The smallest micro-batch.
        are_equal: All micro-batches are equal, so that a group has a whole number of them.
        forward_s, backward_s, optimizer_s: (L + 1, O) prefix sums.
        reduce_s: (L + 1, O) prefix sums: gradients of a layer over the fastest link once.
        overlaps: Gradients may be summed beside the last backward pass.
        state_bytes: (L + 1, O) prefix sums: weights, and the least part of optimizer state.
        gradient_bytes: (L + 1, O) prefix sums; there from the first backward pass on.
        kept_bytes: (L + 1, O) prefix sums: from a forward to its backward pass.
        front_bytes, back_bytes: (L, O) of that, more where a stage begins, or ends, there.
        room_bytes: (O,) of one device.
        in_s, out_s: (L, T) the least seconds from the front to a stage that begins with the layer,
            and back: forward passes, gradients of inputs, and the message over the cut.
        around_s: (L + 1, T) the least seconds from the end of a forward pass of a stage that ends
            in front of the layer to its backward pass.
        class_of: (O,) class of a group.
        degree: (O,) devices of a group.
        num_devices: (T,) devices of a class.
    """

    total: float
    unit: float
    are_equal: bool
    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    reduce_s: Floats
    overlaps: bool
    state_bytes: Floats
    gradient_bytes: Floats
    kept_bytes: Floats
    front_bytes: Floats
    back_bytes: Floats
    room_bytes: Floats
    in_s: Floats
    out_s: Floats
    around_s: Floats
    class_of: Integers
    degree: Integers
    num_devices: Integers


class _Group(NamedTuple):
    """(L,) each, of one kind of group; `room_bytes` is a number."""

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    reduce_s: Floats
    state_bytes: Floats
    gradient_bytes: Floats
    kept_bytes: Floats
    front_bytes: Floats
    back_bytes: Floats
    room_bytes: float


def needs_of(problem: Problem) -> Needs:
    """The needs of a problem, for all that its strategy allows."""
    job, groups, links = problem.job, all_groups(problem), _Links.of(problem)
    sizes = np.array(job.micro_batch_sizes, float) / job.micro_batch_size
    found = [_group(problem, degree, kind, links) for degree, kind in groups]

    def stacked(name: str) -> Floats:
        return np.stack([getattr(each, name) for each in found], axis=1)

    forward_s, backward_s, unit = stacked("forward_s"), stacked("backward_s"), float(sizes.min())
    # Of a zero-bubble schedule only the passes that compute gradients of inputs are waited for, and
    # nothing here knows how long they are.
    waited_s = backward_s * (job.schedule != "zero-bubble")
    in_s, out_s, around_s = _ways(problem, links, unit * forward_s, unit * waited_s, unit)
    return Needs(
        total=float(sizes.sum()),
        unit=unit,
        are_equal=bool(np.ptp(sizes) == 0),
        forward_s=_prefix(forward_s),
        backward_s=_prefix(backward_s),
        optimizer_s=_prefix(stacked("optimizer_s")),
        reduce_s=_prefix(stacked("reduce_s")),
        overlaps=job.overlaps_reduce is not False,
        state_bytes=_prefix(stacked("state_bytes")),
        gradient_bytes=_prefix(stacked("gradient_bytes")),
        kept_bytes=_prefix(stacked("kept_bytes")),
        front_bytes=stacked("front_bytes"),
        back_bytes=stacked("back_bytes"),
        room_bytes=np.array([each.room_bytes for each in found]),
        in_s=in_s,
        out_s=out_s,
        around_s=around_s,
        class_of=np.array([kind for _, kind in groups], np.int64),
        degree=np.array([degree for degree, _ in groups], np.int64),
        num_devices=np.array([len(entry.devices) for entry in problem.classes], np.int64),
    )


def _group(problem: Problem, degree: int, kind: int, links: _Links) -> _Group:
    own, job, strategy = problem.at_degree(degree), problem.job, problem.strategy
    times, tied = own.layer_times, own.tied_parameters
    backward_s, optimizer_s = times.backward_s[:, kind], times.optimizer_s[:, kind]
    if strategy.recompute == "full":
        backward_s = backward_s + times.forward_s[:, kind]
    weights = np.maximum(own.parameters - tied, 0.0) * job.weight_bytes_per_parameter
    trained = np.maximum(own.trained_parameters - tied, 0.0)
    parts = 1
    if strategy.shard_state == "auto":
        num_devices = sum(len(entry.devices) for entry in problem.classes)
        parts = min(job.num_micro_batches, num_devices)
    kept, front, back = _kept(own.layer_memory, kind, problem)
    devices = problem.classes[kind].devices
    return _Group(
        forward_s=times.forward_s[:, kind],
        backward_s=backward_s,
        optimizer_s=optimizer_s / parts,
        reduce_s=own.gradient_bytes * links.s_per_byte[kind],
        state_bytes=weights + trained * job.optimizer_bytes_per_parameter / parts,
        gradient_bytes=trained * job.weight_bytes_per_parameter,
        kept_bytes=kept,
        front_bytes=front,
        back_bytes=back,
        room_bytes=float(max(problem.usable_bytes(device.name) for device in devices)),
    )


def _kept(memory: LayerMemory, kind: int, problem: Problem) -> tuple[Floats, Floats, Floats]:
    """`Needs.kept_bytes`, `front_bytes` and `back_bytes` of one full micro-batch."""
    strategy, own = problem.strategy, np.maximum(memory.own_bytes[:, kind], 0.0)
    before = np.concatenate([[0.0], memory.saved_out_bytes[:-1]])
    kept = own + np.maximum(before, memory.saved_in_bytes)
    inside = np.maximum(before, memory.saved_in_bytes)
    if strategy.recompute == "full":
        kept = inside = memory.in_bytes
    elif strategy.recompute == "auto":
        kept = inside = np.minimum(own + memory.saved_in_bytes, memory.in_bytes)
    if strategy.offload == "auto":
        kept = inside = np.zeros_like(kept)
    # A tensor that passes a stage by is part of what enters it and of what leaves it.
    is_alone = len(memory.passing[2]) == 0
    return kept, memory.in_bytes - inside, memory.out_bytes * is_alone


class _Links(NamedTuple):
    """(T,) the fastest link between a device of each class and any other device."""

    latency_s: Floats
    s_per_byte: Floats

    @classmethod
    def of(cls, problem: Problem) -> _Links:
        """Latencies are less what hosts take for a message: that keeps them busy."""
        # Also where devices of one class are on nodes that have others besides: then the tables
        # have the slowest links between classes.
        fastest = problem.links.of_classes(problem.classes, problem.nodes_apart, is_fastest=True)
        counts = np.array([len(entry.devices) for entry in problem.classes])
        hosts = [node.host for node in problem.cluster.nodes]
        host_s = max(host.send_s for host in hosts) + max(host.receive_s for host in hosts)
        is_other = ~np.eye(len(counts), dtype=bool) | np.diag(counts > 1)
        least = [
            np.where(is_other, np.minimum(link, link.T), np.inf).min(axis=1) for link in fastest
        ]
        latency_s, s_per_byte = (np.where(np.isfinite(each), each, 0.0) for each in least)
        return cls(np.maximum(latency_s - host_s, 0.0), s_per_byte)


def _ways(
    problem: Problem, links: _Links, forward_s: Floats, backward_s: Floats, unit: float
) -> tuple[Floats, Floats, Floats]:
    """`Needs.in_s`, `out_s` and `around_s`, for the smallest micro-batch."""
    waits = 0.0 if problem.job.schedule == "zero-bubble" else 1.0
    forward = _prefix(forward_s.min(axis=1)[:, None])
    backward = _prefix(backward_s.min(axis=1)[:, None])
    num_bytes = unit * problem.tables.output_bytes[:, None]
    # (L + 1, T) over the cut in front of a layer; no message enters the model, or leaves it.
    message_s = np.zeros((len(num_bytes) + 1, len(links.latency_s)))
    message_s[1:-1] = links.latency_s + num_bytes[:-1] * links.s_per_byte
    behind = forward[-1] - forward + backward[-1] - backward
    return (
        forward[:-1] + message_s[:-1],
        (backward[:-1] + message_s[:-1]) * waits,
        behind + (1 + waits) * message_s,
    )


def _prefix(values: Floats) -> Floats:
    out = np.zeros((len(values) + 1, values.shape[1]))
    np.cumsum(values, axis=0, out=out[1:])
    return out
