"""When every action of a schedule begins and ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.estimate import TimelineEvent
from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import kernel
from heterps_envs.schedule.actions import (
    BACKWARD_WEIGHT,
    FORWARD,
    GATHER,
    RECEIVE_BACKWARD,
    REDUCE,
    SEND_BACKWARD,
    SEND_FORWARD,
    STEP,
    Schedule,
)
from heterps_envs.schedule.event_heap import event_heap
from heterps_envs.schedule.plan_arrays import PlanArrays
from heterps_envs.simulator.kernels import (
    AT,
    BUCKET,
    COME,
    DEVICE,
    FIRST_MEMBER,
    KIND,
    MEMBERS,
    NEXT_REDUCE,
    NODE,
    ORDER,
    PACE_END,
    PARTNER,
    PEER,
    POSTED_AHEAD,
    PROCESSES,
    RECEIVES_FROM,
    RECEIVES_TO,
    SLOWDOWN,
    START,
    STOP,
    UNKNOWN,
    WORK,
    RunArrays,
    run_actions,
)
from heterps_envs.simulator.kernels import END as END_COLUMN
from heterps_envs.simulator.messages import Messages
from heterps_envs.simulator.prepared import PreparedPlan


class ActionTimes(NamedTuple):
    """A schedule with its times, in the order of its arrays.

    Attributes:
        start_s: (A,) seconds from the start of the step; of a send, when the message leaves.
        end_s: (A,) of a send, when the message arrives.
        groups: The devices that each device of the schedule stands for.
    """

    schedule: Schedule
    start_s: Floats
    end_s: Floats
    groups: tuple[tuple[str, ...], ...]

    @property
    def step_time_s(self) -> float:
        """When the last device is done."""
        return float(self.end_s.max())

    @property
    def busy_s(self) -> float:
        """Seconds of passes and optimizer steps, of all devices together."""
        kind = self.schedule.kind
        is_busy = ((kind >= FORWARD) & (kind <= BACKWARD_WEIGHT)) | (kind == STEP)
        devices = np.array([len(group) for group in self.groups])[self.schedule.device_of]
        return float(((self.end_s - self.start_s) * devices)[is_busy].sum())

    def timeline(self) -> tuple[TimelineEvent, ...]:
        """Every action in the order of its start, on every device of a group."""
        events = []
        device_of = self.schedule.device_of
        for index in np.lexsort((self.end_s, self.start_s)).tolist():
            action = self.schedule.action(index)
            events += [
                TimelineEvent(
                    device=device,
                    action=action.kind,
                    stage=action.stage,
                    micro_batch=action.micro_batch,
                    start_s=float(self.start_s[index]),
                    end_s=float(self.end_s[index]),
                )
                for device in self.groups[device_of[index]]
            ]
        return tuple(events)


def action_times(
    prepared: PreparedPlan, slowdown: Mapping[str, float] | None = None
) -> ActionTimes:
    """Runs one step of a plan; see `heterps_envs.simulator.simulate` for what is modelled.

    Args:
        prepared: The plan.
        slowdown: For each device name a factor on its forward, backward and optimizer seconds.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    arrays, schedule, messages = prepared.arrays, prepared.schedule, prepared.messages
    groups, factors = arrays.shape.groups, np.ones(len(arrays.shape.groups))
    if slowdown:
        factors[:] = [max(slowdown.get(name, 1.0) for name in group) for group in groups]
    actions, action_s = _actions(arrays, schedule, messages, factors)
    sizes = _devices(arrays, schedule, messages)
    device_s = np.zeros((len(sizes), 2))
    device_s[:, PACE_END] = np.inf
    paces = np.zeros((len(arrays.slowdown), SLOWDOWN))
    node_s = np.concatenate([paces, arrays.slowdown, arrays.step_slowdown], axis=1)
    heap = event_heap(_most_events(arrays, schedule))
    run = RunArrays(
        actions,
        action_s,
        sizes,
        device_s,
        np.zeros((len(node_s), 3), np.int64),
        node_s,
        arrays.latency_s,
        np.zeros(arrays.latency_s.shape),  # of which few are ever touched
        messages.receives,
        _reduces(schedule),
        _reduce_s(prepared),
        heap,
    )
    run_actions(run, arrays.step_s, arrays.is_rendezvous, schedule.overlaps_reduce)
    assert (sizes[:, AT] == schedule.offsets[1:]).all(), "the action lists deadlock"
    return ActionTimes(schedule, action_s[:, START].copy(), action_s[:, END_COLUMN].copy(), groups)


def _most_events(arrays: PlanArrays, schedule: Schedule) -> int:
    """Events at a time: each device has one; where cores are shared, void ones add up."""
    shares_cores = bool((arrays.node >= 0).any())
    return 2 * len(schedule.devices) + (2 * len(schedule.kind) if shares_cores else 0)


def _devices(arrays: PlanArrays, schedule: Schedule, messages: Messages) -> Integers:
    """(D, 12) the columns of `devices` in `heterps_envs.simulator.kernels`."""
    columns = np.zeros((len(schedule.devices), 12), np.int64)
    columns[:, AT], columns[:, STOP] = schedule.offsets[:-1], schedule.offsets[1:]
    ends = np.searchsorted(messages.receives, schedule.offsets)
    columns[:, RECEIVES_FROM], columns[:, RECEIVES_TO] = ends[:-1], ends[1:]
    columns[:, NODE] = arrays.node
    columns[:, POSTED_AHEAD] = messages.posted_ahead
    columns[:, PROCESSES] = arrays.processes
    reduces = np.append(np.flatnonzero(schedule.kind == REDUCE), len(schedule.kind))
    following = reduces[np.searchsorted(reduces, schedule.offsets[:-1])]
    columns[:, NEXT_REDUCE] = np.minimum(following, schedule.offsets[1:])
    return columns


def _actions(
    arrays: PlanArrays, schedule: Schedule, messages: Messages, factors: Floats
) -> tuple[NDArray[np.int32], Floats]:
    """The columns of `actions` and `action_s` in `heterps_envs.simulator.kernels`."""
    # Half as wide as an index: of many actions most time is spent on reading them.
    actions = np.empty((len(schedule.kind), 6), np.int32)
    action_s = np.full((len(schedule.kind), 4), UNKNOWN)
    _fill(
        (schedule.kind, schedule.stage, schedule.micro_batch, schedule.peer, schedule.offsets),
        schedule.ready_share,
        messages.partner,
        len(schedule.buckets),
        (arrays.pipeline_of, arrays.front, arrays.share, arrays.pass_s, arrays.output_bytes),
        (arrays.action_s, arrays.send_s, arrays.receive_s, arrays.optimizer_s, factors),
        (arrays.copies, arrays.s_per_byte),
        actions,
        action_s,
    )
    return actions, action_s


@kernel
def _fill(
    lists: Any, ready_share: Any, partner: Any, num_buckets: int, plan: Any, device_s: Any,
    links: Any, actions: Any, action_s: Any,
) -> None:  # fmt: skip
    """Work is seconds of passes and steps, and those for which a message occupies its link.

    Of all-reduces, `Schedule.ready_share`. A message keeps the device busy in the pass before it is
    sent, or after which it is received.
    """
    kinds, stages, micro_batches, peers, offsets = lists
    pipeline_of, front, share, pass_s, output_bytes = plan
    host_s, send_s, receive_s, optimizer_s, factors = device_s
    copies, s_per_byte = links
    for device in range(len(offsets) - 1):
        received, in_front, latest, receives = 0, 0, -1, 0
        for at in range(offsets[device], offsets[device + 1]):
            kind, stage, m = kinds[at], stages[at], micro_batches[at]
            actions[at, KIND], actions[at, PEER], actions[at, BUCKET] = kind, peers[at], m
            actions[at, PARTNER], actions[at, DEVICE] = partner[at], device
            actions[at, ORDER], work_s = 0, 0.0
            if kind <= RECEIVE_BACKWARD:
                actions[at, ORDER] = received
                received, in_front = received + 1, in_front + 1
            elif kind <= SEND_BACKWARD:
                cut = stage if kind == SEND_FORWARD else front[pipeline_of[m], stage]
                to = peers[at]
                work_s = share[m] * output_bytes[cut] * s_per_byte[device, to]
                action_s[latest, WORK] += send_s[device] * copies[device, to]
            elif kind <= BACKWARD_WEIGHT:
                for _ in range(receives):
                    action_s[latest, WORK] += receive_s[device]
                latest, receives, in_front = at, in_front, 0
                work_s = share[m] * pass_s[stage, kind - FORWARD] * factors[device]
                work_s += host_s[device]
            elif kind == STEP:
                work_s = optimizer_s[device] * factors[device]
            elif kind == REDUCE:
                work_s = ready_share[at]
            elif kind == GATHER:
                actions[at, BUCKET] += num_buckets
            action_s[at, WORK] = work_s
        for _ in range(receives):
            action_s[latest, WORK] += receive_s[device]


def _reduces(schedule: Schedule) -> Integers:
    """(2 K, 2 + most members) no device there yet, how many come, and the actions of each bucket.

    First the all-reduces of the buckets, then what is gathered of them.
    """
    num_buckets = len(schedule.buckets)
    if not num_buckets:
        return np.empty((0, FIRST_MEMBER), np.int64)
    sizes = np.array([len(bucket.devices) for bucket in schedule.buckets], np.int64)
    actions = np.full((2 * num_buckets, FIRST_MEMBER + sizes.max()), -1, np.int64)
    actions[:, COME] = 0
    for row, kind in enumerate((REDUCE, GATHER)):
        found = np.flatnonzero(schedule.kind == kind)
        bucket = schedule.micro_batch[found].astype(np.int64)
        order = np.argsort(bucket, kind="stable")
        count = np.bincount(bucket, minlength=num_buckets)
        actions[row * num_buckets : (row + 1) * num_buckets, MEMBERS] = count
        first = np.repeat(np.cumsum(count) - count, count)
        column = FIRST_MEMBER + np.arange(len(found)) - first
        actions[row * num_buckets + bucket[order], column] = found[order]
    return actions


def _reduce_s(prepared: PreparedPlan) -> Floats:
    """(2 K,) seconds of the all-reduces, and of gathering: half for each where state is sharded."""
    buckets, whole_s = prepared.schedule.buckets, prepared.reduce_s
    half_s = np.where([bucket.is_sharded for bucket in buckets], whole_s / 2, whole_s)
    return np.concatenate([half_s, half_s])
