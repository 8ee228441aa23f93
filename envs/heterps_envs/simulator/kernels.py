"""The compiled simulator: start and end of every action of a schedule.

`heterps_envs.simulator.simulate` explains what is modelled; `tests/envs/reference_simulator.py` has
it in plain Python. Events are handled in the order of time, because the order decides which message
takes a link first, and how many passes share the cores of a node. Numbers of one kind of thing
stand in one array with a column for each: a compiler of many small arrays takes seconds.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import helper, kernel
from heterps_envs.schedule.actions import GATHER, RECEIVE_BACKWARD, REDUCE, SEND_BACKWARD, STEP
from heterps_envs.schedule.event_heap import SIZE, TIME, pop_event, push_event

# A time that is not known yet.
UNKNOWN = -1.0

# Columns of `actions`, (A, 6) int32: the code, the other device of a message, the bucket of an
# all-reduce, the receive that belongs to a send or the other way round, for a receive how many
# receives of its device come before it, and the device.
KIND, PEER, BUCKET, PARTNER, ORDER, DEVICE = 0, 1, 2, 3, 4, 5
# Columns of `action_s`, (A, 4): seconds of a pass that nobody disturbs, or for which a message
# occupies its link, or of a receive, when the sender knows that it is asked for; the result: start
# and end (of a send, when it leaves and arrives); when a send was handed over, or a receive's
# message arrives. Of an all-reduce that overlaps: `Action.ready_share`; when it is on its way; and
# when the device's gradients are complete.
WORK, START, END, KNOWN = 0, 1, 2, 3
# Columns of `devices`, (D, 12) int64: the action it is at, the end of its list, receives done, its
# first row of `receives`, and the row after its last, all-reduces whose end is not known, its node
# (-1: nobody disturbs it), whether it waits for a message or for all-reduces, its first all-reduce
# whose end is not known (or the end of its list), whether what it runs is its optimizer step,
# receives that it asks for ahead of the one that it waits for, and the processes it stands for.
AT, STOP, RECEIVED, RECEIVES_FROM, RECEIVES_TO, REDUCES_LEFT, NODE, WAITING = 0, 1, 2, 3, 4, 5, 6, 7
NEXT_REDUCE, IN_STEP, POSTED_AHEAD, PROCESSES = 8, 9, 10, 11
# Columns of `device_s`, (D, 2): end of its last all-reduce, and where its pass ends on the scale of
# `PACE`, or its optimizer step on that of `STEP_PACE` (inf: it runs none).
REDUCES_END, PACE_END = 0, 1
# Columns of `nodes`, (N, 3) int64: passes and optimizer steps that run, how often that has changed,
# and how many of them are steps.
RUNNING, CHANGE, STEPS = 0, 1, 2
# Columns of `node_s`, (N, 3 + 2 k): undisturbed work that a pass would have had, had it run since
# the beginning; the same of an optimizer step; when `RUNNING` changed last; how much slower each of
# 1 .. k passes is; and by how much more each of 1 .. k optimizer steps.
PACE, STEP_PACE, CHANGED, SLOWDOWN = 0, 1, 2, 3
# `reduces`, (K, 2 + most members): how many devices have come, how many there are, and the members'
# actions.
COME, MEMBERS, FIRST_MEMBER = 0, 1, 2


class RunArrays(NamedTuple):
    """All that a run reads and writes; the columns are those above.

    Attributes:
        actions: (A, 6) int32.
        action_s: (A, 4) seconds.
        devices: (D, 12) int64.
        device_s: (D, 2) seconds.
        nodes: (N, 3) int64.
        node_s: (N, 3 + 2 k) seconds and factors.
        latency_s: (D, D) of the link from one device to another.
        free_s: (D, D) when it is free.
        receives: (R,) actions that receive, device by device.
        reduces: (K, 2 + most members) int64.
        reduce_s: (K,) seconds of each all-reduce.
        heap: Of events (`heterps_envs.schedule.event_heap`).
    """

    actions: NDArray[np.int32]
    action_s: Floats
    devices: Integers
    device_s: Floats
    nodes: Integers
    node_s: Floats
    latency_s: Floats
    free_s: Floats
    receives: Integers
    reduces: Integers
    reduce_s: Floats
    heap: Floats


@kernel
def run_actions(run: Any, step_s: Any, is_rendezvous: bool, overlaps_reduce: bool) -> None:
    """Runs all lists of a `RunArrays`, each of which begins after its device's `step_s`.

    Events: a device is done with its action (its index), follows its list (D + its index), or the
    first pass of a node ends (`2 D + change * N + node`; void when the node has changed since).
    """
    actions, action_s, devices, device_s, nodes, node_s = run[:6]
    latency_s, free_s, receives, reduces, reduce_s, heap = run[6:]
    num_devices, num_nodes = len(devices), len(nodes)
    for device in range(num_devices):
        push_event(heap, step_s[device], num_devices + device)
    while heap[0, SIZE] > 0:
        now = heap[1, TIME]
        code = pop_event(heap)
        if code >= 2 * num_devices:
            node, change = (
                (code - 2 * num_devices) % num_nodes,
                (code - 2 * num_devices) // num_nodes,
            )
            if change != nodes[node, CHANGE]:
                continue
            device = _end_shared(devices, device_s, nodes, node_s, heap, node, now)
            code = device
        device = code % num_devices
        is_done = code < num_devices
        while devices[device, AT] < devices[device, STOP]:
            at = devices[device, AT]
            kind = actions[at, KIND]
            if is_done:
                action_s[at, END] = now
                devices[device, AT] = at + 1
                is_done = False
                if kind <= RECEIVE_BACKWARD:
                    devices[device, RECEIVED] += 1
                    # The next receive is posted, and its message may be waiting for that.
                    row = devices[device, RECEIVES_FROM] + devices[device, RECEIVED]
                    row += devices[device, POSTED_AHEAD]
                    if is_rendezvous and row <= devices[device, RECEIVES_TO]:
                        asked = receives[row - 1]
                        asked_s = now + latency_s[device, actions[asked, PEER]]
                        action_s[asked, WORK], send = asked_s, actions[asked, PARTNER]
                        if action_s[send, KNOWN] != UNKNOWN:
                            _leave(
                                actions, action_s, devices, latency_s, free_s, heap, send, asked_s
                            )
                continue
            action_s[at, START] = now
            if kind <= RECEIVE_BACKWARD:
                if action_s[at, KNOWN] == UNKNOWN:
                    devices[device, WAITING] = 1
                    break
                if action_s[at, KNOWN] > now:
                    push_event(heap, action_s[at, KNOWN], device)
                    break
                is_done = True
            elif kind <= SEND_BACKWARD:
                action_s[at, KNOWN] = now
                devices[device, AT] = at + 1
                peer = actions[at, PEER]
                ahead = devices[peer, RECEIVED] + devices[peer, POSTED_AHEAD]
                if not is_rendezvous or actions[actions[at, PARTNER], ORDER] < ahead:
                    leaves_s = max(now, action_s[actions[at, PARTNER], WORK])
                    _leave(actions, action_s, devices, latency_s, free_s, heap, at, leaves_s)
            elif kind == REDUCE and overlaps_reduce:
                devices[device, REDUCES_LEFT] += 1
                devices[device, AT] = at + 1
                action_s[at, KNOWN] = _complete_s(actions, action_s, at, now)
                reduces[actions[at, BUCKET], COME] += 1
                _overlap(run, actions[at, BUCKET], now)
            elif kind == REDUCE or kind == GATHER:  # noqa: SIM109
                reduces[actions[at, BUCKET], COME] += 1
                _reduce(actions, reduces, reduce_s, heap, actions[at, BUCKET], now)
                break
            elif kind == STEP and devices[device, REDUCES_LEFT] > 0:
                devices[device, WAITING] = 1
                break
            elif kind == STEP and device_s[device, REDUCES_END] > now:
                push_event(heap, device_s[device, REDUCES_END], num_devices + device)
                break
            elif devices[device, NODE] < 0:
                push_event(heap, now + action_s[at, WORK], device)
                break
            else:
                node = devices[device, NODE]
                _catch_up(nodes, node_s, node, now)
                nodes[node, RUNNING] += devices[device, PROCESSES]
                devices[device, IN_STEP] = kind == STEP
                nodes[node, STEPS] += devices[device, IN_STEP] * devices[device, PROCESSES]
                pace = node_s[node, PACE + devices[device, IN_STEP]]
                device_s[device, PACE_END] = pace + action_s[at, WORK]
                _foresee(devices, device_s, nodes, node_s, heap, node, now)
                break


@helper
def _leave(
    actions: Any, action_s: Any, devices: Any, latency_s: Any, free_s: Any, heap: Any, send: int,
    now: float,
) -> None:  # fmt: skip
    """A message leaves as soon as its link is free, from `now` on."""
    receive, to = actions[send, PARTNER], actions[send, PEER]
    source = actions[receive, PEER]
    start_s = free_s[source, to]
    if start_s < now:
        start_s = now
    free_s[source, to] = start_s + action_s[send, WORK]
    arrival_s = free_s[source, to] + latency_s[source, to]
    action_s[send, START], action_s[send, END] = start_s, arrival_s
    action_s[receive, KNOWN] = arrival_s
    if devices[to, WAITING] and devices[to, AT] == receive:
        devices[to, WAITING] = 0
        push_event(heap, arrival_s, to)


@helper
def _reduce(actions: Any, reduces: Any, reduce_s: Any, heap: Any, bucket: int, now: float) -> None:
    """An all-reduce begins when the last of its devices is there, and keeps them."""
    num_members = reduces[bucket, MEMBERS]
    if reduces[bucket, COME] == num_members:
        for column in range(FIRST_MEMBER, FIRST_MEMBER + num_members):
            member = actions[reduces[bucket, column], DEVICE]
            push_event(heap, now + reduce_s[bucket], member)


@helper
def _complete_s(actions: Any, action_s: Any, reduce: int, now: float) -> float:
    """When the gradients of an all-reduce were complete, in the pass in front or by now."""
    if action_s[reduce, WORK] >= 1.0:
        return now
    at = reduce - 1
    while actions[at, KIND] == REDUCE:
        at -= 1
    taken_s: float = action_s[at, END] - action_s[at, START]
    return float(action_s[at, START] + action_s[reduce, WORK] * taken_s)


@helper
def _overlap(run: Any, bucket: int, now: float) -> None:
    """Times an all-reduce whose devices have all come, and then what waited for it."""
    devices = run.devices
    found = _time_overlapped(run, bucket, now)
    while found:
        found = False
        for device in range(len(devices)):
            at = devices[device, NEXT_REDUCE]
            if at >= devices[device, STOP]:
                continue
            if _time_overlapped(run, run.actions[at, BUCKET], now):
                found = True


@helper
def _time_overlapped(run: Any, bucket: int, now: float) -> bool:
    """It begins when all gradients are complete, and on each device the one before it is done."""
    actions, action_s, devices, device_s = run[:4]
    reduces, reduce_s, heap = run[9:]
    num_members, begin_s = reduces[bucket, MEMBERS], 0.0
    if reduces[bucket, COME] < num_members:
        return False
    for column in range(FIRST_MEMBER, FIRST_MEMBER + num_members):
        action = reduces[bucket, column]
        member = actions[action, DEVICE]
        if devices[member, NEXT_REDUCE] != action:
            return False
        begin_s = max(begin_s, action_s[action, KNOWN], device_s[member, REDUCES_END])
    end_s = begin_s + reduce_s[bucket]
    for column in range(FIRST_MEMBER, FIRST_MEMBER + num_members):
        action = reduces[bucket, column]
        member = actions[action, DEVICE]
        action_s[action, START], action_s[action, END] = begin_s, end_s
        device_s[member, REDUCES_END] = end_s
        devices[member, REDUCES_LEFT] -= 1
        devices[member, NEXT_REDUCE] = _next_reduce(actions, action + 1, devices[member, STOP])
        if (
            devices[member, WAITING]
            and devices[member, REDUCES_LEFT] == 0
            and actions[devices[member, AT], KIND] == STEP
        ):
            devices[member, WAITING] = 0
            push_event(heap, max(end_s, now), len(devices) + member)
    return True


@helper
def _next_reduce(actions: Any, at: int, stop: int) -> int:
    while at < stop and actions[at, KIND] != REDUCE:
        at += 1
    return at


@helper
def _end_shared(
    devices: Any, device_s: Any, nodes: Any, node_s: Any, heap: Any, node: int, now: float
) -> int:
    """The pass of a node that has least left ends; returns its device."""
    _catch_up(nodes, node_s, node, now)
    device: int = _next_to_end(devices, device_s, nodes, node_s, node)
    node_s[node, PACE + devices[device, IN_STEP]] = device_s[device, PACE_END]
    device_s[device, PACE_END] = np.inf
    nodes[node, RUNNING] -= devices[device, PROCESSES]
    nodes[node, STEPS] -= devices[device, IN_STEP] * devices[device, PROCESSES]
    _foresee(devices, device_s, nodes, node_s, heap, node, now)
    return device


@helper
def _catch_up(nodes: Any, node_s: Any, node: int, now: float) -> None:
    """Brings the pace of a node up to date."""
    if nodes[node, RUNNING] > 0:
        taken_s = now - node_s[node, CHANGED]
        for in_step in range(2):
            node_s[node, PACE + in_step] += taken_s / _slowdown(nodes, node_s, node, in_step)
    node_s[node, CHANGED] = now


@helper
def _foresee(
    devices: Any, device_s: Any, nodes: Any, node_s: Any, heap: Any, node: int, now: float
) -> None:
    """Says when the next pass of a node ends if nothing changes; what was said before is void."""
    nodes[node, CHANGE] += 1
    if nodes[node, RUNNING] > 0:
        device = _next_to_end(devices, device_s, nodes, node_s, node)
        left_s = _left_s(devices, device_s, nodes, node_s, device)
        if left_s < 0:  # by rounding
            left_s = 0.0
        end_s = now + left_s
        push_event(heap, end_s, 2 * len(devices) + nodes[node, CHANGE] * len(nodes) + node)


@helper
def _slowdown(nodes: Any, node_s: Any, node: int, in_step: int) -> float:
    """How much slower passes of a node are at the moment, or optimizer steps.

    Steps are slowed as passes are, and by what steps at the same time add to that.
    """
    slowdown: float = node_s[node, SLOWDOWN + nodes[node, RUNNING] - 1]
    if in_step and nodes[node, STEPS] > 0:
        most = (node_s.shape[1] - SLOWDOWN) // 2
        slowdown *= node_s[node, SLOWDOWN + most + nodes[node, STEPS] - 1]
    return slowdown


@helper
def _left_s(devices: Any, device_s: Any, nodes: Any, node_s: Any, device: int) -> float:
    """Seconds until the running pass or step of a device ends if nothing changes."""
    node, in_step = devices[device, NODE], devices[device, IN_STEP]
    left = device_s[device, PACE_END] - node_s[node, PACE + in_step]
    return float(left * _slowdown(nodes, node_s, node, in_step))


@helper
def _next_to_end(devices: Any, device_s: Any, nodes: Any, node_s: Any, node: int) -> int:
    best, best_s = -1, np.inf
    for device in range(len(devices)):
        if devices[device, NODE] == node and device_s[device, PACE_END] < np.inf:
            left_s = _left_s(devices, device_s, nodes, node_s, device)
            if best < 0 or left_s < best_s:
                best, best_s = device, left_s
    return best
