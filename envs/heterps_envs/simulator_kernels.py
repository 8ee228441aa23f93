"""The compiled simulator: start and end of every action of a schedule.

`heterps_envs.simulator` explains what is modelled; `tests/envs/reference_simulator.py` has it in
plain Python. Events are handled in the order of time, because the order decides which message
takes a link first, and how many passes share the cores of a node.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from heterps_envs.actions import RECEIVE_BACKWARD, REDUCE, SEND_BACKWARD, STEP
from heterps_envs.event_heap import EventHeap, pop_event, push_event

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Receives that the executor posts ahead of the one that is waited for: the same number as
# `heterps_runtime.executor.POSTED_AHEAD`.
POSTED_AHEAD = 4
# A time that is not known yet.
UNKNOWN = -1.0


class SimulatorRun(NamedTuple):
    """A run: A actions, R receives, D devices, K buckets, N nodes whose cores are shared.

    Attributes:
        heap: What happens next: a device is done with its action (its index), begins one (D + its
            index), or the first pass of a node ends (`2 D + change * N + node`).
        offsets: (D + 1,) the actions of a device.
        kind: (A,)
        peer: (A,)
        bucket: (A,)
        partner: (A,) the receive that belongs to a send, and the other way round; else -1.
        receive_number: (A,) how many receives of the device come before.
        receives: (R,) the receives of all devices, in order.
        receives_from: (D,) where those of a device begin.
        work_s: (A,) seconds of a pass that nobody disturbs.
        transfer_s: (A,) seconds for which a send occupies its link.
        latency_s: (D, D)
        reduce_s: (K,)
        reduces: (K, most members) their actions; -1 behind the last.
        overlaps_reduce: Whether a device goes on behind a `reduce`.
        is_rendezvous: Whether a message leaves only when its receive has been posted.
        node: (D,) node whose cores the device shares; -1: none.
        slowdown: (N, k)
        start_s: (A,) the result; of a send, when it leaves.
        end_s: (A,) the result; of a send, when it arrives.
        position: (D,) the action that a device is at.
        num_received: (D,)
        is_waiting: (D,) for a message that has not left, or for all-reduces at its `step`.
        sent_s: (A,) when a send was handed over.
        arrival_s: (A,) of a receive.
        link_free_s: (D, D)
        num_there: (K,) devices that have reached the bucket.
        reduces_left: (D,) all-reduces whose end is not known.
        reduces_end_s: (D,) when the last of the others ends.
        num_running: (N,) passes.
        pace: (N,) seconds of undisturbed work that each pass has had since the step began, had it
            run all the time.
        changed_s: (N,) when `num_running` changed last.
        change: (N,) how often it has changed.
        pace_end: (D,) where the device's pass ends on the scale of `pace`; inf: it runs none.
    """

    heap: EventHeap
    offsets: Integers
    kind: NDArray[np.int8]
    peer: NDArray[np.int32]
    bucket: NDArray[np.int32]
    partner: Integers
    receive_number: Integers
    receives: Integers
    receives_from: Integers
    work_s: Floats
    transfer_s: Floats
    latency_s: Floats
    reduce_s: Floats
    reduces: Integers
    overlaps_reduce: bool
    is_rendezvous: bool
    node: Integers
    slowdown: Floats
    start_s: Floats
    end_s: Floats
    position: Integers
    num_received: Integers
    is_waiting: NDArray[np.bool_]
    sent_s: Floats
    arrival_s: Floats
    link_free_s: Floats
    num_there: Integers
    reduces_left: Integers
    reduces_end_s: Floats
    num_running: Integers
    pace: Floats
    changed_s: Floats
    change: Integers
    pace_end: Floats


@njit(cache=True)
def run_actions(run: Any, step_s: Any) -> None:
    """Fills `start_s` and `end_s`.

    Args:
        run: `SimulatorRun`.
        step_s: (D,) when each device begins.
    """
    num_devices, num_nodes = len(run.position), len(run.pace)
    for device in range(num_devices):
        push_event(run.heap, step_s[device], num_devices + device)
    while run.heap.size[0] > 0:
        now = run.heap.time_s[0]
        code = pop_event(run.heap)
        if code >= 2 * num_devices:
            change, node = divmod(code - 2 * num_devices, num_nodes)
            if change == run.change[node]:
                device = _end_shared(run, node, now)
                _finish(run, device, now)
                _follow(run, device, now)
        else:
            device = code % num_devices
            if code < num_devices:
                _finish(run, device, now)
            _follow(run, device, now)


@njit(cache=True)
def _finish(run: Any, device: int, now: float) -> None:
    """The action that the device is at ends."""
    at = run.position[device]
    run.end_s[at] = now
    run.position[device] += 1
    if run.kind[at] <= RECEIVE_BACKWARD:
        run.num_received[device] += 1
        number = run.num_received[device] + POSTED_AHEAD - 1
        first = run.receives_from[device]
        # The next receive is posted, and the message may be there already.
        if run.is_rendezvous and first + number < len(run.receives):
            posted = run.receives[first + number]
            if posted < run.offsets[device + 1] and run.sent_s[run.partner[posted]] != UNKNOWN:
                _transfer(run, device, run.partner[posted], now)


@njit(cache=True)
def _follow(run: Any, device: int, now: float) -> None:
    """Follows a device's list until an action takes time."""
    while run.position[device] < run.offsets[device + 1]:
        at = run.position[device]
        kind = run.kind[at]
        run.start_s[at] = now
        if kind <= RECEIVE_BACKWARD:
            if run.arrival_s[at] == UNKNOWN:
                run.is_waiting[device] = True
                return
            if run.arrival_s[at] > now:
                push_event(run.heap, run.arrival_s[at], device)
                return
            _finish(run, device, now)
        elif kind <= SEND_BACKWARD:
            _send(run, at, now)
            run.position[device] += 1
        elif kind == REDUCE:
            _reach_bucket(run, device, at, now)
            if not run.overlaps_reduce:
                return
        elif kind == STEP and run.reduces_left[device] > 0:
            run.is_waiting[device] = True
            return
        elif kind == STEP and run.reduces_end_s[device] > now:
            push_event(run.heap, run.reduces_end_s[device], len(run.position) + device)
            return
        else:
            _compute(run, device, at, now)
            return


@njit(cache=True)
def _send(run: Any, at: int, now: float) -> None:
    run.sent_s[at] = now
    receive, to = run.partner[at], run.peer[at]
    is_posted = run.receive_number[receive] < run.num_received[to] + POSTED_AHEAD
    if is_posted or not run.is_rendezvous:
        _transfer(run, to, at, now)


@njit(cache=True)
def _transfer(run: Any, to: int, send: int, now: float) -> None:
    """The message leaves as soon as its link is free."""
    receive = run.partner[send]
    source = run.peer[receive]
    start_s = max(now, run.link_free_s[source, to])
    run.link_free_s[source, to] = start_s + run.transfer_s[send]
    arrival_s = run.link_free_s[source, to] + run.latency_s[source, to]
    run.start_s[send], run.end_s[send] = start_s, arrival_s
    run.arrival_s[receive] = arrival_s
    if run.is_waiting[to] and run.position[to] == receive:
        run.is_waiting[to] = False
        push_event(run.heap, arrival_s, to)


@njit(cache=True)
def _reach_bucket(run: Any, device: int, at: int, now: float) -> None:
    """A device comes to an all-reduce, which begins when the last of its devices is there."""
    bucket, num_devices = run.bucket[at], len(run.position)
    run.num_there[bucket] += 1
    if run.overlaps_reduce:
        run.position[device] += 1
        run.reduces_left[device] += 1
    members = run.reduces[bucket]
    if run.num_there[bucket] < (members >= 0).sum():
        return
    begin_s = now
    for action in members:
        if action >= 0:
            member = np.searchsorted(run.offsets, action, "right") - 1
            begin_s = max(begin_s, run.reduces_end_s[member])
    end_s = begin_s + run.reduce_s[bucket]
    for action in members:
        if action < 0:
            continue
        member = np.searchsorted(run.offsets, action, "right") - 1
        if not run.overlaps_reduce:
            push_event(run.heap, end_s, member)
            continue
        run.end_s[action] = end_s
        run.reduces_end_s[member] = end_s
        run.reduces_left[member] -= 1
        if run.is_waiting[member] and run.reduces_left[member] == 0:
            at_step = run.kind[run.position[member]] == STEP
            if at_step:
                run.is_waiting[member] = False
                push_event(run.heap, end_s, num_devices + member)


@njit(cache=True)
def _compute(run: Any, device: int, at: int, now: float) -> None:
    node = run.node[device]
    if node < 0:
        push_event(run.heap, now + run.work_s[at], device)
        return
    _catch_up(run, node, now)
    run.num_running[node] += 1
    run.pace_end[device] = run.pace[node] + run.work_s[at]
    _foresee(run, node, now)


@njit(cache=True)
def _end_shared(run: Any, node: int, now: float) -> int:
    """The pass of a node that has least left ends; returns its device."""
    _catch_up(run, node, now)
    device = _next_to_end(run, node)
    run.pace[node] = run.pace_end[device]
    run.pace_end[device] = np.inf
    run.num_running[node] -= 1
    _foresee(run, node, now)
    return device


@njit(cache=True)
def _catch_up(run: Any, node: int, now: float) -> None:
    """Brings the pace of a node up to date."""
    running = run.num_running[node]
    if running > 0:
        run.pace[node] += (now - run.changed_s[node]) / run.slowdown[node, running - 1]
    run.changed_s[node] = now


@njit(cache=True)
def _foresee(run: Any, node: int, now: float) -> None:
    """Says when the next pass of a node ends if nothing changes; what was said before is void."""
    run.change[node] += 1
    running = run.num_running[node]
    if running == 0:
        return
    left = run.pace_end[_next_to_end(run, node)] - run.pace[node]
    end_s = now + max(left, 0.0) * run.slowdown[node, running - 1]
    code = 2 * len(run.position) + run.change[node] * len(run.pace) + node
    push_event(run.heap, end_s, code)


@njit(cache=True)
def _next_to_end(run: Any, node: int) -> int:
    best = -1
    for device in range(len(run.position)):
        if run.node[device] == node and (best < 0 or run.pace_end[device] < run.pace_end[best]):
            best = device
    return best
