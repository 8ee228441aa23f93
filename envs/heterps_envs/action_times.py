"""When every action of a schedule begins and ends."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.estimate import TimelineEvent
from heterps_configs.plan import Plan
from heterps_envs.actions import (
    BACKWARD_WEIGHT,
    FORWARD,
    RECEIVE_BACKWARD,
    REDUCE,
    SEND_BACKWARD,
    SEND_FORWARD,
    STEP,
    Schedule,
)
from heterps_envs.event_heap import event_heap
from heterps_envs.plan_arrays import PlanArrays, plan_arrays
from heterps_envs.problem import Problem
from heterps_envs.reduce_buckets import reduce_s
from heterps_envs.schedule import schedule_of
from heterps_envs.simulator_kernels import UNKNOWN, SimulatorRun, run_actions
from heterps_envs.workload import workload

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]


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
    """Runs one step of a plan; see `heterps_envs.simulator` for what is modelled.

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
    run = _run(problem, arrays, schedule, factors)
    run_actions(run, arrays.step_s)
    assert (run.position == schedule.offsets[1:]).all(), "the action lists deadlock"
    return ActionTimes(schedule, run.start_s, run.end_s)


def _run(problem: Problem, arrays: PlanArrays, schedule: Schedule, factors: Floats) -> SimulatorRun:
    num_actions, num_devices = len(schedule.kind), len(schedule.devices)
    num_nodes, num_buckets = len(arrays.slowdown), len(schedule.buckets)
    is_receive = schedule.kind <= RECEIVE_BACKWARD
    receives = np.flatnonzero(is_receive)
    receives_from = np.searchsorted(receives, schedule.offsets[:-1])
    number = np.cumsum(is_receive) - 1 - receives_from[schedule.device_of]
    shares_cores = bool((arrays.node >= 0).any())
    return SimulatorRun(
        heap=event_heap(2 * num_devices + 2 + (2 * num_actions if shares_cores else 0)),
        offsets=schedule.offsets,
        kind=schedule.kind,
        peer=schedule.peer,
        bucket=schedule.micro_batch,
        partner=_partners(schedule),
        receive_number=number,
        receives=receives,
        receives_from=receives_from,
        work_s=_work_s(arrays, schedule, factors),
        transfer_s=_transfer_s(arrays, schedule),
        latency_s=arrays.latency_s,
        reduce_s=np.array([reduce_s(problem, bucket) for bucket in schedule.buckets], float),
        reduces=_reduces(schedule),
        overlaps_reduce=schedule.overlaps_reduce,
        is_rendezvous=arrays.is_rendezvous,
        node=arrays.node,
        slowdown=arrays.slowdown,
        start_s=np.zeros(num_actions),
        end_s=np.zeros(num_actions),
        position=schedule.offsets[:-1].copy(),
        num_received=np.zeros(num_devices, np.int64),
        is_waiting=np.zeros(num_devices, np.bool_),
        sent_s=np.full(num_actions, UNKNOWN),
        arrival_s=np.full(num_actions, UNKNOWN),
        link_free_s=np.zeros((num_devices, num_devices)),
        num_there=np.zeros(num_buckets, np.int64),
        reduces_left=np.zeros(num_devices, np.int64),
        reduces_end_s=np.zeros(num_devices),
        num_running=np.zeros(num_nodes, np.int64),
        pace=np.zeros(num_nodes),
        changed_s=np.zeros(num_nodes),
        change=np.zeros(num_nodes, np.int64),
        pace_end=np.full(num_devices, np.inf),
    )


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
    kind, device = schedule.kind, schedule.device_of
    seconds = np.zeros(len(kind))
    passes = np.flatnonzero((kind >= FORWARD) & (kind <= BACKWARD_WEIGHT))
    share = arrays.share[schedule.micro_batch[passes]]
    seconds[passes] = share * arrays.pass_s[schedule.stage[passes], kind[passes] - FORWARD]
    steps = kind == STEP
    seconds[steps] = arrays.optimizer_s[device[steps]]
    seconds *= factors[device]
    seconds[passes] += arrays.action_s[device[passes]]
    return seconds


def _transfer_s(arrays: PlanArrays, schedule: Schedule) -> Floats:
    kind = schedule.kind
    seconds = np.zeros(len(kind))
    sends = np.flatnonzero((kind == SEND_FORWARD) | (kind == SEND_BACKWARD))
    stage, micro_batch = schedule.stage[sends], schedule.micro_batch[sends]
    front = arrays.front[arrays.pipeline_of[micro_batch], stage]
    cut = np.where(kind[sends] == SEND_FORWARD, stage, front)
    link = arrays.s_per_byte[schedule.device_of[sends], schedule.peer[sends]]
    seconds[sends] = arrays.share[micro_batch] * arrays.output_bytes[cut] * link
    return seconds


def _reduces(schedule: Schedule) -> Integers:
    """(K, most members) the actions of each bucket; -1 behind the last."""
    most = max((len(bucket.devices) for bucket in schedule.buckets), default=1)
    actions = np.full((len(schedule.buckets), most), -1, np.int64)
    found = np.flatnonzero(schedule.kind == REDUCE)
    for bucket in range(len(schedule.buckets)):
        members = found[schedule.micro_batch[found] == bucket]
        actions[bucket, : len(members)] = members
    return actions
