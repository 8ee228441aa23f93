"""What any stage needs, as arrays over layers and groups of devices: seconds, bytes, ways out.

All numbers are lower limits of what the simulator counts: every link is the fastest of its class, a
group has any degree that some node has room for, and where a strategy leaves open what a stage does
with activations and optimizer state, it takes the seconds of the fastest way and the bytes of the
smallest. (A stage may do it layer by layer, so that no single way is a limit of both.)
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers, contiguous
from heterps_envs.layer_costs.kept_memory import LayerMemory
from heterps_envs.options import all_groups, some_groups
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.near_links import NearLinks
from heterps_envs.step_bounds.stage_seconds import least_backward_s, least_forward_s
from heterps_envs.step_bounds.sums import Sums, prefix, sums_of
from heterps_envs.step_bounds.ways import Groups, ways_of

# Owners of a layer that sums tell apart: those of more are no shorter than those of so many.
MOST_OWNERS = 64


class Needs(NamedTuple):
    """L layers, O kinds of groups, T classes; prefix sums have a row more than there are layers.

    Seconds are those of one full micro-batch; `unit` is the smallest one as a share of that. Of two
    rows for ways to a stage and on, row 0 is about any, row 1 about those over another node.

    Attributes:
        total: Micro-batches of a step, in full ones.
        unit: The smallest micro-batch.
        are_equal: All micro-batches are equal, so that a group has a whole number of them.
        forward_s, backward_s: (L + 1, O) prefix sums.
        optimizer_s: (2, L + 1, O) prefix sums: of layers that no other group has, and the least
            where others have them too and optimizer state may be sharded.
        overlaps: Gradients may be summed beside the last backward pass.
        sums: Seconds of gradients' sums.
        delay_s: (N + 1, O, L) seconds by which sums end later if the layer's begins when the last
            backward pass has gone through it, but for what all layers of a range have alike.
        state_bytes: (2, L + 1, O) prefix sums: weights and optimizer state, as of `optimizer_s`.
        gradient_bytes: (L + 1, O) prefix sums; there from the first backward pass on.
        kept_bytes: (L + 1, O) prefix sums: from a forward to its backward pass.
        front_bytes, back_bytes: (L, O) of that, more where a stage begins, or ends, there.
        room_bytes: (O,) of one device.
        in_s, out_s: (2, L, O) the least seconds from the front to a stage that begins with the
            layer, and back: forward passes, gradients of inputs, and messages.
        around_s: (2, L + 1, O) the least seconds from the end of a forward pass of a stage that
            ends in front of the layer to its backward pass.
        class_of: (O,) class of a group.
        degree: (O,) devices of a group.
        num_devices: (T,) devices of a class.
        node_size: (T,) see `NearLinks`.
    """

    total: float
    unit: float
    are_equal: bool
    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    overlaps: bool
    sums: Sums
    delay_s: Floats
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
    node_size: Integers


class _Group(NamedTuple):
    """(L,) each, of one kind of group; `room_bytes` is a number."""

    forward_s: Floats
    backward_s: Floats
    optimizer_s: Floats
    weight_bytes: Floats
    moment_bytes: Floats
    gradient_bytes: Floats
    kept_bytes: Floats
    front_bytes: Floats
    back_bytes: Floats
    room_bytes: float


def needs_of(problem: Problem) -> Needs:
    """The needs of a problem, for all that its strategy allows."""
    job, groups, links = problem.job, some_groups(problem), NearLinks.of(problem)
    sizes = np.array(job.micro_batch_sizes, float) / job.micro_batch_size
    found = [_group(problem, degree, kind) for degree, kind in groups]

    def stacked(name: str) -> Floats:
        return np.stack([getattr(each, name) for each in found], axis=1)

    forward_s, backward_s, unit = stacked("forward_s"), stacked("backward_s"), float(sizes.min())
    optimizer_s, gradient_bytes = stacked("optimizer_s"), stacked("gradient_bytes")
    num_devices = np.array([len(entry.devices) for entry in problem.classes], np.int64)
    class_of = [kind for _, kind in groups]
    degree = np.array([each for each, _ in groups], np.int64)
    kinds = Groups(np.array(class_of, np.int64), degree, num_devices)
    # Every owner of a layer has a micro-batch of its own.
    most = min(len(sizes), int(num_devices.sum()))
    parts = most if problem.strategy.shard_state == "auto" else 1
    shared = 1 / np.array([1, parts])[:, None, None]
    # Of a zero-bubble schedule only the passes that compute gradients of inputs are waited for, and
    # nothing here knows how long they are.
    waits = 0.0 if job.schedule == "zero-bubble" else 1.0
    summed = sums_of(gradient_bytes, optimizer_s, class_of, links, min(most, MOST_OWNERS), parts)
    delay_s = (summed.sum_s - summed.rest_s)[0, :, 1:] - prefix(backward_s)[:-1]
    ways = ways_of(problem, links, kinds, unit * forward_s, waits * unit * backward_s, unit)
    needs = Needs(
        total=float(sizes.sum()),
        unit=unit,
        are_equal=bool(np.ptp(sizes) == 0),
        forward_s=prefix(forward_s),
        backward_s=prefix(backward_s),
        optimizer_s=prefix(optimizer_s * shared),
        overlaps=job.overlaps_reduce is not False,
        sums=summed,
        delay_s=delay_s.swapaxes(1, 2),
        state_bytes=prefix(stacked("weight_bytes") + stacked("moment_bytes") * shared),
        gradient_bytes=prefix(gradient_bytes),
        kept_bytes=prefix(stacked("kept_bytes")),
        front_bytes=stacked("front_bytes"),
        back_bytes=stacked("back_bytes"),
        room_bytes=np.array([each.room_bytes for each in found]),
        in_s=ways.in_s,
        out_s=ways.out_s,
        around_s=ways.around_s,
        class_of=kinds.class_of,
        degree=degree,
        num_devices=num_devices,
        node_size=links.node_size,
    )
    return contiguous(needs)


def _group(problem: Problem, degree: int, kind: int) -> _Group:
    own, job, strategy = problem.at_degree(degree), problem.job, problem.strategy
    times, tied = own.layer_times, own.tied_parameters
    forward_s = least_forward_s(times.forward_s[:, kind], times.stage_forward_s[:, kind])
    backward_s = times.backward_s[:, kind]
    if strategy.recompute == "full":
        backward_s = backward_s + times.forward_s[:, kind]
    backward_s = least_backward_s(
        backward_s, times.stage_backward_s[:, kind], times.weight_gradient_s[:, kind]
    )
    trained = np.maximum(own.trained_parameters - tied, 0.0)
    kept, front, back = _kept(own.layer_memory, kind, problem)
    devices = problem.classes[kind].devices
    return _Group(
        forward_s=forward_s,
        backward_s=backward_s,
        optimizer_s=times.optimizer_s[:, kind],
        weight_bytes=np.maximum(own.parameters - tied, 0.0) * job.weight_bytes_per_parameter,
        moment_bytes=trained * job.optimizer_bytes_per_parameter,
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


def dropped_bytes(problem: Problem) -> Floats:
    """(L, O) that layers keep beyond `Needs.kept_bytes` unless they are computed again."""
    strategy, found = problem.strategy, []
    for degree, kind in all_groups(problem):
        memory = problem.at_degree(degree).layer_memory
        kept = np.maximum(memory.own_bytes[:, kind], 0.0) + memory.saved_in_bytes
        found.append(np.maximum(kept - memory.in_bytes, 0.0))
    is_choice = strategy.recompute == "auto" and strategy.offload != "auto"
    return np.stack(found, axis=1) * is_choice
