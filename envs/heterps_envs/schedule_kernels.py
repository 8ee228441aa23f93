"""The compiled list scheduler: one run of a plan on a common clock, which writes every list down.

`heterps_envs.schedule` explains the rules; `tests/envs/reference_schedule.py` has them in plain
Python.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps_envs.actions import FORWARD, RECEIVE_FORWARD, SEND_FORWARD
from heterps_envs.event_heap import (
    EventHeap,
    event_heap,
    pop_event,
    pop_number,
    push_event,
    push_number,
)
from heterps_envs.plan_arrays import PlanArrays

Integers = NDArray[np.int64]

# Events closer than this share of the clock are simultaneous: sums of times differ by rounding.
SIMULTANEOUS = 1e-10
# Passes, in the order of the columns of `PlanArrays.pass_s` and of the action codes.
F, B, B_INPUT, B_WEIGHT = 0, 1, 2, 3


class ListRules(NamedTuple):
    """What a device chooses among the passes that are ready.

    Of passes of one kind the one with the smallest (group of the micro-batch, rank of the stage,
    micro-batch) goes first.

    Attributes:
        group: (M,) group of each micro-batch.
        forward_rank, backward_rank: (S,) below `num_ranks`.
        room: (S,) forward passes that may wait for their backward pass.
        held: (S,) forward passes whose activations may be kept.
        is_gpipe: All forward passes of a device come before its backward passes.
        is_split: Backward passes come in two parts.
        order: Passes of all devices, device by device, as `(kind * S + stage) * M + micro-batch`:
            each device then waits for the next of its passes. Empty: it takes what is ready.
        order_offsets: (D + 1,) where the passes of each device begin.
    """

    group: Integers
    forward_rank: Integers
    backward_rank: Integers
    num_ranks: int
    room: Integers
    held: Integers
    is_gpipe: bool
    is_split: bool
    order: Integers
    order_offsets: Integers


class ListArrays(NamedTuple):
    """Where the lists are written: as in `heterps_envs.actions.Schedule`; `end` is (D,)."""

    end: Integers
    kind: NDArray[np.int8]
    stage: NDArray[np.int32]
    micro_batch: NDArray[np.int32]
    peer: NDArray[np.int32]


class _State(NamedTuple):
    """The run so far."""

    heap: EventHeap
    is_running: NDArray[np.bool_]  # (D,)
    forwards_left: Integers  # (D,)
    stages_of: Integers  # (S,) stages by device
    stages_from: Integers  # (D + 1,) where a device's stages begin
    room: Integers
    held: Integers
    no_limit: Integers  # (S,)
    queue: Integers  # (3, S, M) heaps of passes that are ready: forward, backward, weights
    size: Integers  # (3, S)
    is_ready: NDArray[np.bool_]  # (4 S M,) the same, where the order is given
    position: Integers  # (D,) in the given order
    link_free_s: NDArray[np.float64]  # (D, D)
    # Messages sent and not received, a list for each (source, destination, direction). A message
    # is (direction, stage that receives it, micro-batch).
    first_message: Integers
    last_message: Integers
    next_message: Integers
    is_received: NDArray[np.bool_]


def list_schedule(plan: PlanArrays, rules: ListRules, lists: ListArrays) -> float:
    """Writes the passes and messages of every device; returns when the last pass ends.

    Args:
        plan: What is run.
        rules: How devices choose.
        lists: Written; `end` has to hold where each device's list begins.
    """
    num_devices, num_stages = len(plan.action_s), len(plan.stage_device)
    num_micro_batches = len(plan.share)
    messages, channels = 2 * num_stages * num_micro_batches, 2 * num_devices**2
    by_device = np.argsort(plan.stage_device, kind="stable")
    stages_from = np.searchsorted(plan.stage_device[by_device], np.arange(num_devices + 1))
    on_route = (plan.front >= 0) | (plan.behind >= 0)
    on_route[np.arange(len(plan.front)), plan.first_stage] = True
    passes = np.bincount(plan.pipeline_of, minlength=len(plan.front)) @ on_route
    state = _State(
        heap=event_heap(2 * (num_micro_batches + num_devices) + 2),
        is_running=np.zeros(num_devices, np.bool_),
        forwards_left=np.bincount(plan.stage_device, passes, num_devices).astype(np.int64),
        stages_of=by_device,
        stages_from=stages_from,
        room=rules.room.copy(),
        held=rules.held.copy(),
        no_limit=np.ones(num_stages, np.int64),
        queue=np.empty((3, num_stages, num_micro_batches), np.int64),
        size=np.zeros((3, num_stages), np.int64),
        is_ready=np.zeros(2 * messages if len(rules.order) else 0, np.bool_),
        position=rules.order_offsets[:-1].copy(),
        link_free_s=np.zeros((num_devices, num_devices)),
        first_message=np.full(channels, -1),
        last_message=np.full(channels, -1),
        next_message=np.full(messages, -1),
        is_received=np.zeros(messages, np.bool_),
    )
    return float(_run(plan, rules, lists, state))


@njit(cache=True)
def _run(plan: Any, rules: Any, lists: Any, state: Any) -> float:
    num_stages, num_micro_batches = len(plan.stage_device), len(plan.share)
    heap, now = state.heap, 0.0
    touched = np.empty(len(plan.action_s), np.int64)
    is_touched = np.zeros(len(plan.action_s), np.bool_)
    # As if the routes were walked one after the other, each with its micro-batches.
    for pipeline in range(len(plan.first_stage)):
        for m in range(num_micro_batches):
            if plan.pipeline_of[m] == pipeline:
                push_event(heap, 0.0, plan.first_stage[pipeline] * num_micro_batches + m)
    while heap.size[0] > 0:
        until, num_touched = heap.time_s[0] * (1 + SIMULTANEOUS), 0
        while heap.size[0] > 0 and heap.time_s[0] <= until:
            now = heap.time_s[0]
            code = pop_event(heap)
            m, rest = code % num_micro_batches, code // num_micro_batches
            stage, kind = rest % num_stages, rest // num_stages
            device = plan.stage_device[stage]
            if not is_touched[device]:
                is_touched[device] = True
                touched[num_touched] = device
                num_touched += 1
            if kind < 4:
                _make_ready(rules, state, kind, stage, m)
            else:
                _end(plan, rules, lists, state, now, kind - 4, stage, m)
        for index in range(num_touched):
            device = touched[index]
            is_touched[device] = False
            if not state.is_running[device]:
                chosen = _choose(rules, state, device, num_stages, num_micro_batches)
                if chosen >= 0:
                    _start(plan, lists, state, now, device, chosen)
    return now


@njit(cache=True)
def _make_ready(rules: Any, state: Any, kind: int, stage: int, m: int) -> None:
    num_stages, num_micro_batches = state.queue.shape[1], state.queue.shape[2]
    if len(rules.order):
        state.is_ready[(kind * num_stages + stage) * num_micro_batches + m] = True
        return
    row = min(kind, 1) if kind != B_WEIGHT else 2
    push_number(
        state.queue[row, stage], state.size[row, stage], rules.group[m] * num_micro_batches + m
    )
    state.size[row, stage] += 1


@njit(cache=True)
def _first(state: Any, ranks: Any, num_ranks: int, device: int, row: int, rooms: Any) -> int:
    """The stage of a device whose next pass goes first; -1: none is ready and has room."""
    num_micro_batches, best, found = state.queue.shape[2], 0, -1
    for index in range(state.stages_from[device], state.stages_from[device + 1]):
        stage = state.stages_of[index]
        if state.size[row, stage] > 0 and rooms[stage] > 0:
            value = state.queue[row, stage, 0]
            group, m = value // num_micro_batches, value % num_micro_batches
            key = (group * num_ranks + ranks[stage]) * num_micro_batches + m
            if found < 0 or key < best:
                best, found = key, stage
    return found


@njit(cache=True)
def _choose(rules: Any, state: Any, device: int, num_stages: int, num_micro_batches: int) -> int:
    """Takes the next pass of a free device, as `(kind * S + stage) * M + micro-batch`; or -1."""
    if len(rules.order):
        at = state.position[device]
        if at == rules.order_offsets[device + 1] or not state.is_ready[rules.order[at]]:
            return -1
        state.position[device] += 1
        return int(rules.order[at])
    kind, row = F, 0
    stage = _first(state, rules.forward_rank, rules.num_ranks, device, 0, state.room)
    if stage >= 0 and state.held[stage] == 0:
        kind, row = B_WEIGHT, 2  # makes room for that forward pass
    if stage < 0 and not (rules.is_gpipe and state.forwards_left[device] > 0):
        kind, row = (B_INPUT if rules.is_split else B), 1
        stage = _first(state, rules.backward_rank, rules.num_ranks, device, 1, state.no_limit)
        if stage < 0 and rules.is_split:
            kind, row = B_WEIGHT, 2
            stage = _first(state, rules.backward_rank, rules.num_ranks, device, 2, state.no_limit)
    if stage < 0:
        return -1
    value = pop_number(state.queue[row, stage], state.size[row, stage])
    state.size[row, stage] -= 1
    return (kind * num_stages + stage) * num_micro_batches + value % num_micro_batches


@njit(cache=True)
def _start(plan: Any, lists: Any, state: Any, now: float, device: int, chosen: int) -> None:
    num_stages, num_micro_batches = state.queue.shape[1], state.queue.shape[2]
    m, rest = chosen % num_micro_batches, chosen // num_micro_batches
    stage, kind = rest % num_stages, rest // num_stages
    if kind == F:
        state.room[stage] -= 1
        state.held[stage] -= 1
        state.forwards_left[device] -= 1
    if kind != B_WEIGHT:
        _receive(plan, lists, state, device, min(kind, 1), stage, m)
    _append(lists, device, FORWARD + kind, stage, m, -1)
    state.is_running[device] = True
    seconds = plan.share[m] * plan.pass_s[stage, kind] + plan.action_s[device]
    push_event(state.heap, now + seconds, 4 * num_stages * num_micro_batches + chosen)


@njit(cache=True)
def _append(lists: Any, device: int, kind: int, stage: int, m: int, peer: int) -> None:
    at = lists.end[device]
    lists.end[device] += 1
    lists.kind[at], lists.stage[at] = kind, stage
    lists.micro_batch[at], lists.peer[at] = m, peer


@njit(cache=True)
def _receive(
    plan: Any, lists: Any, state: Any, device: int, direction: int, stage: int, m: int
) -> None:
    """Receives what the pass needs, and before it all that the same sender sent earlier."""
    num_stages, num_micro_batches = state.queue.shape[1], state.queue.shape[2]
    neighbours = plan.front if direction == 0 else plan.behind
    source = neighbours[plan.pipeline_of[m], stage]
    if source < 0 or plan.stage_device[source] == device:
        return
    wanted = (direction * num_stages + stage) * num_micro_batches + m
    sender = plan.stage_device[source]
    channel = (sender * len(state.is_running) + device) * 2 + direction
    while not state.is_received[wanted]:
        message = state.first_message[channel]
        state.first_message[channel] = state.next_message[message]
        state.is_received[message] = True
        rest = message // num_micro_batches
        _append(
            lists, device, RECEIVE_FORWARD + direction, rest % num_stages,
            message % num_micro_batches, sender,
        )  # fmt: skip


@njit(cache=True)
def _end(
    plan: Any, rules: Any, lists: Any, state: Any, now: float, kind: int, stage: int, m: int
) -> None:
    device = plan.stage_device[stage]
    state.is_running[device] = False
    if kind in (B, B_INPUT):
        state.room[stage] += 1
    if kind in (B, B_WEIGHT):
        state.held[stage] += 1
    if kind == B_WEIGHT:
        return
    if kind == B_INPUT:
        _make_ready(rules, state, B_WEIGHT, stage, m)
    direction = min(kind, 1)
    neighbours = plan.behind if direction == 0 else plan.front
    target = neighbours[plan.pipeline_of[m], stage]
    backward = B_INPUT if rules.is_split else B
    if target < 0:
        if kind == F:
            _make_ready(rules, state, backward, stage, m)
        return
    to = F if direction == 0 else backward
    if plan.stage_device[target] == device:
        _make_ready(rules, state, to, target, m)
        return
    arrival_s = _send(plan, lists, state, now, direction, stage, target, m)
    num_stages, num_micro_batches = state.queue.shape[1], state.queue.shape[2]
    push_event(state.heap, arrival_s, (to * num_stages + target) * num_micro_batches + m)


@njit(cache=True)
def _send(
    plan: Any, lists: Any, state: Any, now: float, direction: int, stage: int, target: int, m: int
) -> float:
    """Puts the message on its link; returns when it arrives."""
    num_stages, num_micro_batches = state.queue.shape[1], state.queue.shape[2]
    source, to = plan.stage_device[stage], plan.stage_device[target]
    cut = stage if direction == 0 else target
    free_s = max(now, state.link_free_s[source, to]) + (
        plan.share[m] * plan.output_bytes[cut] * plan.s_per_byte[source, to]
    )
    state.link_free_s[source, to] = free_s
    _append(lists, source, SEND_FORWARD + direction, stage, m, to)
    message = (direction * num_stages + target) * num_micro_batches + m
    channel = (source * len(state.is_running) + to) * 2 + direction
    if state.first_message[channel] < 0:
        state.first_message[channel] = message
    else:
        state.next_message[state.last_message[channel]] = message
    state.last_message[channel] = message
    return float(free_s + plan.latency_s[source, to])
