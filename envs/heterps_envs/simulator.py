"""Simulator: times the action lists of a plan, action by action, and says what the plan costs.

A pass takes the seconds of the cost tables. A send returns at once; the link between two devices
carries one message at a time in each direction: it leaves when the link is free, occupies it for
bytes / bandwidth, and arrives a latency later. A receive waits for the arrival. A gradient
all-reduce is a ring over its devices and starts when all of them are there.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Mapping
from typing import NamedTuple

from heterps_configs.estimate import Estimate, LayerTimesLabel, TimelineEvent
from heterps_configs.plan import Plan
from heterps_envs.actions import Action, ReduceBucket, Schedule
from heterps_envs.layer_times import OWN_TIMES
from heterps_envs.memory import plan_memory_bytes
from heterps_envs.placement import closed_form_step_time_s, placement_of
from heterps_envs.problem import Problem
from heterps_envs.schedule import build_schedule
from heterps_envs.workload import Workload, tied_layers, tied_share, workload


def simulate(
    problem: Problem,
    plan: Plan,
    schedule: Schedule | None = None,
    *,
    slowdown: Mapping[str, float] | None = None,
) -> Estimate:
    """Runs one step of a plan, with its timeline.

    Args:
        problem: Where the seconds and bytes come from.
        plan: What runs.
        schedule: Its action lists; by default `build_schedule(problem, plan)`.
        slowdown: For each device name a factor on its forward, backward and optimizer seconds.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    return _estimate(problem, plan, schedule, slowdown or {}, with_timeline=True)


def estimate(problem: Problem, plan: Plan, with_timeline: bool = False) -> Estimate:
    """Simulates one step of a plan.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    return _estimate(problem, plan, None, {}, with_timeline)


def reduce_bytes(problem: Problem, bucket: ReduceBucket) -> float:
    """Bytes of the gradients in one bucket; tied parameters count once, with their users."""
    gradient = problem.tables.gradient_bytes
    total = float(sum(gradient[layer] for layer in bucket.layers))
    for owner, users in tied_layers(problem.profile).items():
        shared = max(gradient[user] * tied_share(problem.profile, user) for user in users)
        if owner in bucket.layers:
            total -= min(shared, gradient[owner])
        if users[0] in bucket.layers:  # then all of them are
            total += shared - sum(gradient[user] for user in users)
    return total


def reduce_s(problem: Problem, bucket: ReduceBucket) -> float:
    """Seconds of one ring all-reduce over the bucket's devices, in their order."""
    devices, n = bucket.devices, len(bucket.devices)
    links = [problem.link(a, b) for a, b in zip(devices, devices[1:] + devices[:1], strict=True)]
    bandwidth = min(link.bandwidth_bytes_per_s for link in links)
    latency_s = max(link.latency_s for link in links)
    return 2 * (n - 1) * (latency_s + reduce_bytes(problem, bucket) / n / bandwidth)


class _Event(NamedTuple):
    start_s: float
    end_s: float
    device: str
    action: Action


class _Run:
    """One step: every device follows its list until it has to wait for another one."""

    def __init__(
        self, problem: Problem, plan: Plan, schedule: Schedule, slowdown: Mapping[str, float]
    ) -> None:
        self.problem, self.schedule, self.slowdown = problem, schedule, slowdown
        self.work: Workload = workload(problem, plan)
        self.optimizer_s = _optimizer_s(problem, plan)
        self.position = dict.fromkeys(schedule.actions, 0)
        self.clock_s = dict.fromkeys(schedule.actions, 0.0)
        self.busy_s = 0.0
        self.link_free_s: dict[tuple[str, str], float] = defaultdict(float)
        # (source, destination, direction) -> arrival times and micro-batches, in the sender's order
        self.arrivals: dict[tuple[str, str, str], deque[tuple[float, int]]] = defaultdict(deque)
        self.at_bucket: dict[int, list[str]] = defaultdict(list)
        self.runnable = deque(schedule.actions)
        self.events: list[_Event] = []
        while self.runnable:
            self._follow(self.runnable.popleft())
        assert all(
            self.position[device] == len(actions) for device, actions in schedule.actions.items()
        ), "the action lists deadlock"

    @property
    def step_time_s(self) -> float:
        return max(self.clock_s.values())

    def _follow(self, device: str) -> None:
        actions = self.schedule.actions[device]
        while self.position[device] < len(actions):
            action = actions[self.position[device]]
            if action.kind == "send":
                self._send(device, action)
            elif action.kind == "receive":
                queue = self.arrivals[action.peer, device, action.direction]
                if not queue:
                    return
                arrival_s, micro_batch = queue.popleft()
                assert micro_batch == action.micro_batch, "received in another order than sent"
                self._advance(device, action, max(self.clock_s[device], arrival_s))
            elif action.kind == "reduce":
                if not self._reduce(device, action):
                    return
            else:
                seconds = self._compute_s(device, action)
                self.busy_s += seconds
                self._advance(device, action, self.clock_s[device] + seconds)
            self.position[device] += 1

    def _advance(self, device: str, action: Action, end_s: float) -> None:
        self.events.append(_Event(self.clock_s[device], end_s, device, action))
        self.clock_s[device] = end_s

    def _compute_s(self, device: str, action: Action) -> float:
        if action.kind == "step":
            seconds = self.optimizer_s[device]
        else:
            assert action.kind == "forward" or action.kind == "backward"
            seconds = self.work.seconds(action.kind, action.stage, action.micro_batch)
        return seconds * self.slowdown.get(device, 1.0)

    def _send(self, device: str, action: Action) -> None:
        assert action.direction
        num_bytes = self.work.message_bytes(action.direction, action.stage, action.micro_batch)
        link = self.problem.link(device, action.peer)
        departure_s = max(self.clock_s[device], self.link_free_s[device, action.peer])
        free_s = departure_s + num_bytes / link.bandwidth_bytes_per_s
        self.link_free_s[device, action.peer] = free_s
        arrival_s = free_s + link.latency_s
        self.arrivals[device, action.peer, action.direction].append((arrival_s, action.micro_batch))
        self.events.append(_Event(departure_s, arrival_s, device, action))
        self.runnable.append(action.peer)

    def _reduce(self, device: str, action: Action) -> bool:
        """False: not all devices of the bucket are there yet."""
        bucket = self.schedule.buckets[action.bucket]
        there = self.at_bucket[action.bucket]
        if device not in there:  # it may be woken while it waits
            there.append(device)
        if len(there) < len(bucket.devices):
            return False
        end_s = max(self.clock_s[member] for member in there) + reduce_s(self.problem, bucket)
        for member in there:
            self._advance(member, action, end_s)
            if member != device:
                self.position[member] += 1
                self.runnable.append(member)
        return True


def _optimizer_s(problem: Problem, plan: Plan) -> dict[str, float]:
    seconds: dict[str, float] = defaultdict(float)
    for stage in plan.stages:
        for device in stage.devices:
            column = problem.tables.optimizer_s[:, problem.class_of[device]]
            seconds[device] += float(column[stage.first_layer : stage.last_layer + 1].sum())
    return seconds


def _estimate(
    problem: Problem,
    plan: Plan,
    schedule: Schedule | None,
    slowdown: Mapping[str, float],
    with_timeline: bool,
) -> Estimate:
    run = _Run(problem, plan, schedule or build_schedule(problem, plan), slowdown)
    step_time_s = run.step_time_s
    batch, devices = problem.job.global_batch_size, plan.devices
    throughput = batch / max(step_time_s, 1e-30)
    per_hour = sum(problem.device_named[name].price_usd_per_hour for name in devices)
    placement = placement_of(problem, plan)
    memory = plan_memory_bytes(problem, plan)
    reasons = (*_memory_reasons(problem, plan, memory), *_floor_reasons(problem, throughput))
    return Estimate(
        step_time_s=step_time_s,
        closed_form_step_time_s=placement and closed_form_step_time_s(problem, placement),
        throughput_samples_per_s=throughput,
        price_usd_per_million_samples=per_hour / 3600 * step_time_s / batch * 1e6,
        memory_bytes=memory,
        memory_limit_bytes={name: problem.device_named[name].memory_bytes for name in devices},
        bubble_share=1 - run.busy_s / max(len(devices) * step_time_s, 1e-30),
        feasible=not reasons,
        reasons=reasons,
        layer_times=_layer_times_label(problem, plan),
        timeline=_timeline(run.events) if with_timeline else (),
    )


def _timeline(events: list[_Event]) -> tuple[TimelineEvent, ...]:
    return tuple(
        TimelineEvent(
            device=event.device,
            action=event.action.kind,
            stage=event.action.stage,
            micro_batch=event.action.micro_batch,
            start_s=event.start_s,
            end_s=event.end_s,
        )
        for event in sorted(events, key=lambda event: (event.start_s, event.end_s))
    )


def _memory_reasons(problem: Problem, plan: Plan, memory: Mapping[str, int]) -> list[str]:
    reasons = []
    for name, need in memory.items():
        limit = problem.device_named[name].memory_bytes
        if need > limit:
            stages = ", ".join(stage.name for stage in plan.stages if name in stage.devices)
            reasons.append(
                f"memory: {name} (stage {stages}) needs {need} bytes, {need - limit} more than "
                f"its {limit}"
            )
    return reasons


def _floor_reasons(problem: Problem, throughput: float) -> list[str]:
    floor = problem.job.min_throughput_samples_per_s
    if floor is None or throughput >= floor:
        return []
    return [
        f"throughput: {throughput:.6g} samples/s is {floor - throughput:.6g} below the floor of "
        f"{floor:g}"
    ]


def _layer_times_label(problem: Problem, plan: Plan) -> LayerTimesLabel:
    sources = {problem.layer_times.sources[problem.class_of[name]] for name in plan.devices}
    estimated = sources - set(OWN_TIMES)
    if not estimated:
        return "measured"
    if len(estimated) < len(sources):
        return "partly measured"
    return "calibrated roofline" if estimated == {"calibrated roofline"} else "roofline estimate"
