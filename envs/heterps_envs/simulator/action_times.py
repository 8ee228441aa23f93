"""When every action of a schedule begins and ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.estimate import TimelineEvent
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Floats, Integers
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import (
    BACKWARD_WEIGHT,
    FORWARD,
    RECEIVE_BACKWARD,
    REDUCE,
    SEND_BACKWARD,
    SEND_FORWARD,
    STEP,
    Schedule,
)
from heterps_envs.schedule.build import schedule_of
from heterps_envs.schedule.event_heap import event_heap, push_event
from heterps_envs.schedule.plan_arrays import PlanArrays, plan_arrays
from heterps_envs.schedule.reduce_buckets import reduce_s
from heterps_envs.schedule.workload import workload
from heterps_envs.simulator.kernels import (
    AT,
    BUCKET,
    KIND,
    NEXT_REDUCE,
    NODE,
    ORDER,
    PACE_END,
    PARTNER,
    PEER,
    POSTED_AHEAD,
    RECEIVES_FROM,
    RECEIVES_TO,
    SLOWDOWN,
    START,
    STOP,
    UNKNOWN,
    WORK,
    run_actions,
)
from heterps_envs.simulator.kernels import END as END_COLUMN
from heterps_envs.simulator.posted_receives import receives_posted_ahead


class ActionTimes(NamedTuple):
    """A schedule with its times, in the order of its arrays.

    Attributes:
        start_s: (A,) seconds from the start of the step; of a send, when the message leaves.
        end_s: (A,) of a send, when the message arrives.
    """

    schedule: Schedule
    start_s: Floats
    end_s: Floats

    @property
    def step_time_s(self) -> float:
        """When the last device is done."""
        return float(self.end_s.max())

    @property
    def busy_s(self) -> float:
        """Seconds of passes and optimizer steps, of all devices together."""
        kind = self.schedule.kind
        is_busy = ((kind >= FORWARD) & (kind <= BACKWARD_WEIGHT)) | (kind == STEP)
        return float((self.end_s - self.start_s)[is_busy].sum())

    def timeline(self) -> tuple[TimelineEvent, ...]:
        """Every action in the order of its start."""
        events = []
        device_of = self.schedule.device_of
        for index in np.lexsort((self.end_s, self.start_s)).tolist():
            action = self.schedule.action(index)
            events.append(
                TimelineEvent(
                    device=self.schedule.devices[device_of[index]],
                    action=action.kind,
                    stage=action.stage,
                    micro_batch=action.micro_batch,
                    start_s=float(self.start_s[index]),
                    end_s=float(self.end_s[index]),
                )
            )
        return tuple(events)


def action_times(
    problem: Problem,
    plan: Plan,
    schedule: Schedule | None = None,
    *,
    slowdown: Mapping[str, float] | None = None,
) -> ActionTimes:
    """Runs one step of a plan; see `heterps_envs.simulator.simulate` for what is modelled.

    Args:
        problem: Where the seconds and bytes come from.
        plan: What runs.
        schedule: Its action lists; by default those of `build_schedule(problem, plan)`.
        slowdown: For each device name a factor on its forward, backward and optimizer seconds.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    arrays = plan_arrays(problem, plan, workload(problem, plan))
    schedule = schedule or schedule_of(problem, plan, arrays)
    factors = np.array([(slowdown or {}).get(name, 1.0) for name in schedule.devices])
    action_s = np.full((len(schedule.kind), 4), UNKNOWN)
    action_s[:, WORK] = _work_s(arrays, schedule, factors)
    sizes, receives = _devices(arrays, schedule), np.flatnonzero(schedule.kind <= RECEIVE_BACKWARD)
    device_s = np.zeros((len(sizes), 2))
    device_s[:, PACE_END] = np.inf
    paces = np.zeros((len(arrays.slowdown), SLOWDOWN))
    node_s = np.concatenate([paces, arrays.slowdown, arrays.step_slowdown], axis=1)
    heap = event_heap(_most_events(arrays, schedule))
    for device, start_s in enumerate(arrays.step_s.tolist()):
        push_event(heap, start_s, len(sizes) + device)
    run_actions(
        _actions(schedule, receives),
        action_s,
        sizes,
        device_s,
        np.zeros((len(node_s), 3), np.int64),
        node_s,
        np.stack([arrays.latency_s, np.zeros_like(arrays.latency_s)], axis=2),
        receives,
        _reduces(schedule),
        np.array([reduce_s(problem, bucket) for bucket in schedule.buckets], float),
        heap,
        arrays.is_rendezvous,
        schedule.overlaps_reduce,
    )
    assert (sizes[:, AT] == schedule.offsets[1:]).all(), "the action lists deadlock"
    return ActionTimes(schedule, action_s[:, START].copy(), action_s[:, END_COLUMN].copy())


def _most_events(arrays: PlanArrays, schedule: Schedule) -> int:
    """Events at a time: each device has one; where cores are shared, void ones add up."""
    shares_cores = bool((arrays.node >= 0).any())
    return 2 * len(schedule.devices) + (2 * len(schedule.kind) if shares_cores else 0)


def _devices(arrays: PlanArrays, schedule: Schedule) -> Integers:
    """(D, 11) the columns of `devices` in `heterps_envs.simulator.kernels`."""
    columns = np.zeros((len(schedule.devices), 11), np.int64)
    columns[:, AT], columns[:, STOP] = schedule.offsets[:-1], schedule.offsets[1:]
    before = np.concatenate([[0], np.cumsum(schedule.kind <= RECEIVE_BACKWARD)])
    columns[:, RECEIVES_FROM] = before[schedule.offsets[:-1]]
    columns[:, RECEIVES_TO] = before[schedule.offsets[1:]]
    columns[:, NODE] = arrays.node
    columns[:, POSTED_AHEAD] = receives_posted_ahead(schedule, arrays)
    reduces = np.append(np.flatnonzero(schedule.kind == REDUCE), len(schedule.kind))
    following = reduces[np.searchsorted(reduces, schedule.offsets[:-1])]
    columns[:, NEXT_REDUCE] = np.minimum(following, schedule.offsets[1:])
    return columns


def _actions(schedule: Schedule, receives: Integers) -> Integers:
    """(A, 5) the columns of `actions` in `heterps_envs.simulator.kernels`."""
    columns = np.empty((len(schedule.kind), 5), np.int64)
    columns[:, KIND], columns[:, PEER] = schedule.kind, schedule.peer
    columns[:, BUCKET], columns[:, PARTNER] = schedule.micro_batch, _partners(schedule)
    first = np.searchsorted(receives, schedule.offsets[:-1])
    columns[receives, ORDER] = np.arange(len(receives)) - first[schedule.device_of[receives]]
    return columns


def _partners(schedule: Schedule) -> Integers:
    """(A,) receives of sends and sends of receives: the nth of a direction between two devices."""
    kind, own, peer = schedule.kind, schedule.device_of, schedule.peer.astype(np.int64)
    is_backward = (kind == RECEIVE_BACKWARD) | (kind == SEND_BACKWARD)
    num_devices = len(schedule.devices)
    sends = np.flatnonzero((kind == SEND_FORWARD) | (kind == SEND_BACKWARD))
    receives = np.flatnonzero(kind <= RECEIVE_BACKWARD)
    sent = (own[sends] * num_devices + peer[sends]) * 2 + is_backward[sends]
    received = (peer[receives] * num_devices + own[receives]) * 2 + is_backward[receives]
    sends = sends[np.argsort(sent, kind="stable")]
    receives = receives[np.argsort(received, kind="stable")]
    micro_batch = schedule.micro_batch
    assert np.array_equal(micro_batch[sends], micro_batch[receives]), "received in another order"
    partner = np.full(len(kind), -1, np.int64)
    partner[sends], partner[receives] = receives, sends
    return partner


def _work_s(arrays: PlanArrays, schedule: Schedule, factors: Floats) -> Floats:
    """(A,) seconds of passes and steps, and those for which a message occupies its link.

    Of all-reduces, `Schedule.ready_share`.
    """
    kind, device = schedule.kind, schedule.device_of
    seconds = np.zeros(len(kind))
    passes = np.flatnonzero((kind >= FORWARD) & (kind <= BACKWARD_WEIGHT))
    share = arrays.share[schedule.micro_batch[passes]]
    seconds[passes] = share * arrays.pass_s[schedule.stage[passes], kind[passes] - FORWARD]
    steps = schedule.offsets[1:] - 1
    seconds[steps] = arrays.optimizer_s
    seconds *= factors[device]
    seconds[passes] += arrays.action_s[device[passes]]
    sends = np.flatnonzero((kind == SEND_FORWARD) | (kind == SEND_BACKWARD))
    receives = np.flatnonzero(kind <= RECEIVE_BACKWARD)
    # A message keeps the device busy in the pass before it is sent, or behind which it is received.
    for ends, at, host_s in ((sends, -1, arrays.send_s), (receives, 0, arrays.receive_s)):
        np.add.at(seconds, passes[np.searchsorted(passes, ends) + at], host_s[device[ends]])
    stage, micro_batch = schedule.stage[sends], schedule.micro_batch[sends]
    front = arrays.front[arrays.pipeline_of[micro_batch], stage]
    cut = np.where(kind[sends] == SEND_FORWARD, stage, front)
    link = arrays.s_per_byte[device[sends], schedule.peer[sends]]
    seconds[sends] = arrays.share[micro_batch] * arrays.output_bytes[cut] * link
    reduces = schedule.kind == REDUCE
    seconds[reduces] = schedule.ready_share[reduces]
    return seconds


def _reduces(schedule: Schedule) -> Integers:
    """(K, 1 + most members) no device there yet, and the actions of each bucket; -1 behind them."""
    most = max((len(bucket.devices) for bucket in schedule.buckets), default=1)
    actions = np.full((len(schedule.buckets), 1 + most), -1, np.int64)
    actions[:, 0] = 0
    found = np.flatnonzero(schedule.kind == REDUCE)
    for bucket in range(len(schedule.buckets)):
        members = found[schedule.micro_batch[found] == bucket]
        actions[bucket, 1 : 1 + len(members)] = members
    return actions
