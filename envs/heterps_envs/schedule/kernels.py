"""The compiled list scheduler: the order of every device's passes, from one run on a common clock.

`heterps_envs.schedule.build` explains the rules; `tests/envs/reference_schedule.py` has them in
plain Python. Numbers of one kind of thing stand in one array with a column for each: a compiler of
many small arrays takes seconds.

A pass is coded as `(kind * S + stage) * M + micro-batch`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import helper, kernel
from heterps_envs.schedule.event_heap import (
    SIZE,
    TIME,
    event_heap,
    pop_event,
    pop_number,
    push_event,
    push_number,
)
from heterps_envs.schedule.plan_arrays import PlanArrays

# Events closer than this share of the clock are simultaneous: sums of times differ by rounding.
SIMULTANEOUS = 1e-10
# Kinds of passes, in the order of the columns of `PlanArrays.pass_s` and of the action codes.
F, B, B_INPUT, B_WEIGHT = 0, 1, 2, 3
# Columns of a stage: where it is, its ranks among forward and backward passes, how many forward
# passes it may still run before a backward pass, and before activations are freed, and how many
# passes are ready (forward, backward, for parameters).
DEVICE, RANK, ROOM, HELD, READY = 0, 1, 3, 4, 5
# Columns of a device: its stages, forward passes left, whether it runs a pass, where the next pass
# of its list stands, whether something happened to it now; and a list of such devices.
STAGES_FROM, STAGES_TO, FORWARDS_LEFT, RUNNING, POSITION, STOP = 0, 1, 2, 3, 4, 5
IS_TOUCHED, TOUCHED = 6, 7
# Columns of a micro-batch: its route and its group.
PIPELINE, GROUP = 0, 1
# How devices choose.
EAGER, GPIPE, SPLIT, FIXED = 0, 1, 2, 3


class ListRules(NamedTuple):
    """What a device chooses among the passes that are ready.

    Of passes of one kind the one with the smallest (group of the micro-batch, rank of the stage,
    micro-batch) goes first.

    Attributes:
        group: (M,) group of each micro-batch.
        forward_rank, backward_rank: (S,) below `num_ranks`.
        room: (S,) forward passes that may wait for their backward pass.
        held: (S,) forward passes whose activations may be kept.
        mode: `EAGER`: a forward pass where there is room, else a backward pass. `GPIPE`: all
            forward passes of a device come first. `SPLIT`: backward passes come in two parts.
            `FIXED`: each device waits for the next pass of `order`.
        order: (K,) passes of all devices, device by device.
        offsets: (D + 1,) where the passes of each device begin.
    """

    group: Integers
    forward_rank: Integers
    backward_rank: Integers
    num_ranks: int
    room: Integers
    held: Integers
    mode: int
    order: Integers
    offsets: Integers


class ListArrays(NamedTuple):
    """All that a list schedule reads and writes; the columns are those above.

    Attributes:
        stages: (S, 8) int64.
        stage_s: (S, 5) seconds of each kind of pass, and bytes that leave the stage.
        by_device: (S,) stages, device by device.
        devices: (D, 8) int64.
        action_s: (D,) seconds that the host takes for each pass.
        micro_batches: (M, 2) pipeline and group.
        share: (M,) size of a micro-batch, of the job's.
        target_of: (2, P, S) the stage that a forward and a backward pass goes to; -1: none.
        first_stage: (P,)
        latency_s: (D, D) of each link.
        s_per_byte: (D, D)
        free_s: (D, D) when it is free.
        queue: (4 S, n) what is ready, n the most micro-batches of a stage; M by a fixed order.
        heap: Of events.
    """

    stages: Integers
    stage_s: Floats
    by_device: Integers
    devices: Integers
    action_s: Floats
    micro_batches: Integers
    share: Floats
    target_of: Integers
    first_stage: Integers
    latency_s: Floats
    s_per_byte: Floats
    free_s: Floats
    queue: Integers
    heap: Floats


def list_schedule(plan: PlanArrays, rules: ListRules) -> tuple[float, Integers]:
    """Runs a plan; returns when the last pass ends, and (K,) the order of passes.

    The time is inf where a fixed order comes to no end.
    """
    num_devices, num_stages, num_micro_batches = (
        len(plan.action_s),
        len(plan.stage_device),
        len(plan.share),
    )
    # Of hundreds of replicas each has few micro-batches: rows with room for all would be pages.
    is_fixed, most_routed = rules.mode == FIXED, int(plan.shape.routed.max())
    stages = np.zeros((num_stages, 8), np.int64)
    stages[:, DEVICE], stages[:, RANK] = plan.stage_device, rules.forward_rank
    stages[:, RANK + 1] = rules.backward_rank
    stages[:, ROOM], stages[:, HELD] = rules.room, rules.held
    by_device = np.argsort(plan.stage_device, kind="stable")
    devices = np.zeros((num_devices, 8), np.int64)
    devices[:, STAGES_TO] = np.cumsum(np.bincount(plan.stage_device, minlength=num_devices))
    devices[1:, STAGES_FROM] = devices[:-1, STAGES_TO]
    devices[:, FORWARDS_LEFT] = np.diff(rules.offsets) // (3 if rules.mode == SPLIT else 2)
    devices[:, POSITION], devices[:, STOP] = rules.offsets[:-1], rules.offsets[1:]
    order = rules.order if is_fixed else np.empty(rules.offsets[-1], np.int64)
    arrays = ListArrays(
        stages,
        np.concatenate([plan.pass_s, plan.output_bytes[:, None]], axis=1),
        by_device,
        devices,
        plan.action_s,
        np.stack([plan.pipeline_of, rules.group], axis=1),
        plan.share,
        np.stack([plan.behind, plan.front]),
        plan.first_stage,
        plan.latency_s,
        plan.s_per_byte,
        np.zeros((num_devices, num_devices)),  # of which few are ever touched
        # Heaps of what is ready for each stage, or by pass whether it is ready.
        np.zeros((4 * num_stages, num_micro_batches if is_fixed else most_routed), np.int64),
        event_heap(2 * (num_micro_batches + num_devices) + 2),
    )
    end_s = _run(arrays, rules.num_ranks, rules.mode, order)
    is_complete = bool((devices[:, POSITION] == devices[:, STOP]).all())
    assert is_complete or is_fixed, "a schedule without a fixed order came to no end"
    return float(end_s) if is_complete else np.inf, order


@kernel
def _run(arrays: Any, num_ranks: int, mode: int, order: Any) -> float:
    """The run of `ListArrays`; `order` is written, or in the mode `FIXED` read."""
    stages, stage_s, by_device, devices, action_s, micro_batches = arrays[:6]
    share, target_of, first_stage, latency_s, s_per_byte, free_s, queue, heap = arrays[6:]
    num_stages, num_micro_batches = len(stages), len(share)
    ends = 4 * num_stages * num_micro_batches  # a pass that ends, instead of being ready
    backward = B_INPUT if mode == SPLIT else B
    now = 0.0
    for pipeline in range(len(first_stage)):
        for m in range(num_micro_batches):
            if micro_batches[m, PIPELINE] == pipeline:
                push_event(heap, 0.0, first_stage[pipeline] * num_micro_batches + m)
    while heap[0, SIZE] > 0:
        until, num_touched = heap[1, TIME] * (1 + SIMULTANEOUS), 0
        while heap[0, SIZE] > 0 and heap[1, TIME] <= until:
            now = heap[1, TIME]
            code = pop_event(heap)
            is_end = code >= ends
            m, rest = code % num_micro_batches, code % ends // num_micro_batches
            stage, kind = rest % num_stages, rest // num_stages
            device = stages[stage, DEVICE]
            if not devices[device, IS_TOUCHED]:
                devices[device, IS_TOUCHED] = 1
                devices[num_touched, TOUCHED] = device
                num_touched += 1
            value = micro_batches[m, GROUP] * num_micro_batches + m
            if not is_end:
                _make_ready(stages, queue, mode, kind, stage, m, value)
                continue
            devices[device, RUNNING] = 0
            if kind == B or kind == B_INPUT:  # noqa: SIM109
                stages[stage, ROOM] += 1
            if kind == B or kind == B_WEIGHT:  # noqa: SIM109
                stages[stage, HELD] += 1
            if kind == B_INPUT:
                _make_ready(stages, queue, mode, kind + 1, stage, m, value)  # `B_WEIGHT`
            if kind == B_WEIGHT:
                continue
            is_back = 0 if kind == F else 1
            target = target_of[is_back, micro_batches[m, PIPELINE], stage]
            following = F if kind == F else backward
            if target < 0 and kind == F:  # the last stage turns round
                target, following = stage, backward
            if target >= 0 and stages[target, DEVICE] == device:
                _make_ready(stages, queue, mode, following, target, m, value)
            elif target >= 0:
                to = stages[target, DEVICE]
                num_bytes = share[m] * stage_s[stage if kind == F else target, 4]
                sent_s = max(now, free_s[device, to]) + num_bytes * s_per_byte[device, to]
                free_s[device, to] = sent_s
                code = (following * num_stages + target) * num_micro_batches + m
                push_event(heap, sent_s + latency_s[device, to], code)
        for index in range(num_touched):
            device = devices[index, TOUCHED]
            devices[device, IS_TOUCHED] = 0
            if devices[device, RUNNING]:
                continue
            code = _choose(
                stages, by_device, devices, queue, order, num_ranks, mode, device, num_micro_batches
            )
            if code < 0:
                continue
            m, rest = code % num_micro_batches, code // num_micro_batches
            stage, kind = rest % num_stages, rest // num_stages
            if kind == F:
                stages[stage, ROOM] -= 1
                stages[stage, HELD] -= 1
                devices[device, FORWARDS_LEFT] -= 1
            order[devices[device, POSITION]] = code
            devices[device, POSITION] += 1
            devices[device, RUNNING] = 1
            push_event(heap, now + share[m] * stage_s[stage, kind] + action_s[device], ends + code)
    return now


@helper
def _make_ready(
    stages: Any, queue: Any, mode: int, kind: int, stage: int, m: int, value: int
) -> None:
    if mode == FIXED:
        queue[4 * stage + kind, m] = 1
        return
    row = kind if kind < B_INPUT else kind - 1
    size = stages[stage, READY + row]
    push_number(queue, 4 * stage + row, size, value)
    stages[stage, READY + row] = size + 1


@helper
def _choose(
    stages: Any, by_device: Any, devices: Any, queue: Any, order: Any, num_ranks: int, mode: int,
    device: int, num_micro_batches: int,
) -> int:  # fmt: skip
    """Takes the next pass of a free device; -1: none is ready."""
    num_stages = len(stages)
    if mode == FIXED:
        at = devices[device, POSITION]
        if at == devices[device, STOP]:
            return -1
        m, rest = order[at] % num_micro_batches, order[at] // num_micro_batches
        is_ready = queue[4 * (rest % num_stages) + rest // num_stages, m]
        code: int = order[at] if is_ready else -1
        return code
    for row in range(3):  # forward passes, then backward passes, then those for parameters
        if row == 1 and mode == GPIPE and devices[device, FORWARDS_LEFT] > 0:
            return -1
        best, chosen = -1, -1
        for index in range(devices[device, STAGES_FROM], devices[device, STAGES_TO]):
            stage = by_device[index]
            if stages[stage, READY + row] > 0 and (row > 0 or stages[stage, ROOM] > 0):
                value = queue[4 * stage + row, 0]
                group, m = value // num_micro_batches, value % num_micro_batches
                rank = stages[stage, RANK + (row > 0)]
                key = (group * num_ranks + rank) * num_micro_batches + m
                if chosen < 0 or key < best:
                    best, chosen = key, stage
        if chosen >= 0:
            # Where no more activations may be kept, some have to go before that forward pass.
            taken = 2 if row == 0 and stages[chosen, HELD] == 0 else row
            size = stages[chosen, READY + taken]
            value = pop_number(queue, 4 * chosen + taken, size)
            stages[chosen, READY + taken] = size - 1
            kind = taken + 1 if mode == SPLIT and taken > 0 else taken
            m = value % num_micro_batches
            taken_pass: int = (kind * num_stages + chosen) * num_micro_batches + m
            return taken_pass
    return -1
