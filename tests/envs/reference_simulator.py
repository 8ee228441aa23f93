"""The simulator in plain Python, by small steps of time: what the compiled one must agree with."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from itertools import takewhile

from heterps_configs.documents.cluster import HostTimes
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Action, Schedule
from heterps_envs.schedule.plan_arrays import optimizer_slowdown_of, plan_arrays, slowdown_of
from heterps_envs.schedule.reduce_buckets import reduce_s
from heterps_envs.schedule.workload import workload
from heterps_envs.simulator.messages import messages

ROUNDING = 1e-12
PASSES = ("forward", "backward", "backward-input", "backward-weight")


@dataclass
class _Message:
    """One message of a channel: when it was handed over, asked for, and arrives."""

    num_bytes: float = 0.0
    is_sent: bool = False
    is_posted: bool = False
    asked_s: float = 0.0  # when the sender knows that it is posted
    arrival_s: float | None = None


@dataclass
class _Device:
    """Where a device is in its list."""

    name: str
    actions: tuple[Action, ...]
    at: int = 0
    left_s: float | None = None  # undisturbed seconds of the running action
    posted: int = 0
    sent: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))
    received: dict[tuple[str, str], int] = field(default_factory=lambda: defaultdict(int))


class ReferenceSimulator:
    """Runs a schedule; `end_s` has the end of every action but sends, by device."""

    def __init__(self, problem: Problem, plan: Plan, schedule: Schedule) -> None:
        self.problem, self.schedule = problem, schedule
        self.work, self.plan = workload(problem, plan), plan
        self.devices = [_Device(name, schedule.actions[name]) for name in schedule.devices]
        self.emulated = {
            name: problem.device_named[name].type.emulation is not None for name in schedule.devices
        }
        self.is_rendezvous = not any(self.emulated.values())
        self.hosts = {
            device.name: node.host
            for node in problem.cluster.nodes
            for device in problem.cluster.devices
            if device.node == node.name
        }
        self.messages: dict[tuple[str, str, str, int], _Message] = defaultdict(_Message)
        self.link_free_s: dict[tuple[str, str], float] = defaultdict(float)
        self.come: dict[int, list[str]] = defaultdict(list)
        self.reduced_s: dict[int, float] = {}
        self.ready_s: dict[tuple[int, str], float] = {}
        self.start_s: dict[tuple[str, int], float] = {}
        self.end_s: dict[str, list[float]] = {name: [] for name in schedule.devices}
        self.now = 0.0
        ahead = messages(schedule, plan_arrays(problem, plan)).posted_ahead
        for device, count in zip(self.devices, ahead, strict=True):
            for _ in range(count):
                self._post(device, is_first=True)
        self._run()

    def _run(self) -> None:
        while any(device.at < len(device.actions) for device in self.devices):
            while any([self._advance(device) for device in self.devices]):
                pass
            step = min(self._next_events(), default=None)
            if step is None:
                assert all(device.at == len(device.actions) for device in self.devices), "deadlock"
                return
            for device in self.devices:
                if device.left_s is not None:
                    device.left_s -= (step - self.now) / self._slowdown(device)
            self.now = step

    def _next_events(self) -> list[float]:
        times = [
            self.now + max(device.left_s, 0.0) * self._slowdown(device)
            for device in self.devices
            if device.left_s is not None
        ]
        times += [m.arrival_s for m in self.messages.values() if m.arrival_s is not None]
        times += list(self.reduced_s.values())
        times += [self._begin_s(device) for device in self.devices]
        running = [device for device in self.devices if device.left_s is not None]
        later = [time for time in times[len(running) :] if time > self.now]
        return times[: len(running)] + later

    def _begin_s(self, device: _Device) -> float:
        return 0.0 if self.emulated[device.name] else self.hosts[device.name].step_s

    def _slowdown(self, device: _Device) -> float:
        if self.emulated[device.name]:
            return 1.0
        node = self.problem.device_named[device.name].node
        running = [
            other.actions[other.at].kind
            for other in self.devices
            if other.left_s is not None
            and not self.emulated[other.name]
            and self.problem.device_named[other.name].node == node
        ]
        host, num_steps = self.hosts[device.name], running.count("step")
        slowdown = slowdown_of(host, len(running))
        if device.left_s is None or device.actions[device.at].kind != "step":
            return slowdown
        together = optimizer_slowdown_of(host, self.problem.job.optimizer, num_steps)
        return slowdown * together / slowdown_of(host, num_steps)

    def _advance(self, device: _Device) -> bool:
        """Whether something happened."""
        if device.at == len(device.actions) or self.now < self._begin_s(device):
            return False
        action = device.actions[device.at]
        if action.kind == "receive":
            channel = action.peer, action.direction
            number = device.received[channel]
            arrival_s = self.messages[action.peer, device.name, action.direction, number].arrival_s
            if arrival_s is None or arrival_s > self.now:
                return False
            device.received[channel] += 1
            self._done(device)
            self._post(device)
        elif action.kind == "send":
            self._send(device, action)
            self._done(device)
        elif action.kind == "reduce" and self.schedule.overlaps_reduce:
            self.ready_s[action.bucket, device.name] = self._ready_s(device, action)
            self._done(device)
            self._time_overlapped()
        elif action.kind in ("reduce", "gather"):
            return self._together(device, action)
        elif device.left_s is None:
            if action.kind == "step" and not self._is_reduced(device):
                return False
            device.left_s = self._seconds(device, action)
            self.start_s[device.name, device.at] = self.now
        elif device.left_s <= ROUNDING:
            device.left_s = None
            self._done(device)
        else:
            return False
        return True

    def _done(self, device: _Device) -> None:
        self.end_s[device.name].append(self.now)
        device.at += 1

    def _seconds(self, device: _Device, action: Action) -> float:
        if action.kind == "step":
            column = self.problem.tables.optimizer_s[:, self.problem.class_of[device.name]]
            own = [stage for stage in self.plan.stages if device.name in stage.devices]
            parts = {
                layer: sum(layer in stage.layers for stage in self.plan.stages)
                if layer in self.plan.sharded_layers
                else 1
                for layer in range(self.plan.num_layers)
            }
            layers = (layer for stage in own for layer in stage.layers)
            return float(sum(column[layer] / parts[layer] for layer in layers))
        assert action.kind != "receive"
        assert action.kind != "send"
        assert action.kind != "reduce"
        assert action.kind != "gather"
        host_s = 0.0 if self.emulated[device.name] else self.hosts[device.name].action_s
        received, sent = self._ends_of_messages(device)
        host_s += received * self._host(device.name).receive_s
        host_s += sent * self._host(device.name).send_s
        return self.work.seconds(action.kind, action.stage, action.micro_batch) + host_s

    def _host(self, name: str) -> HostTimes:
        return HostTimes() if self.emulated[name] else self.hosts[name]

    def _ends_of_messages(self, device: _Device) -> tuple[int, int]:
        """Receives just before the running pass, and sends just behind it."""
        kinds = [action.kind for action in device.actions]
        before = takewhile(lambda kind: kind not in PASSES, reversed(kinds[: device.at]))
        behind = takewhile(lambda kind: kind not in PASSES, kinds[device.at + 1 :])
        return list(before).count("receive"), list(behind).count("send")

    def _post(self, device: _Device, *, is_first: bool = False) -> None:
        """The device asks for its next receive; for the first ones it did so in time."""
        receives = [action for action in device.actions if action.kind == "receive"]
        if device.posted == len(receives):
            return
        action = receives[device.posted]
        earlier = receives[: device.posted]
        number = sum(
            (other.peer, other.direction) == (action.peer, action.direction) for other in earlier
        )
        device.posted += 1
        message = self.messages[action.peer, device.name, action.direction, number]
        message.is_posted = True
        if not is_first and self.is_rendezvous:
            message.asked_s = self.now + self._latency_s(device.name, action.peer)
        self._leave(action.peer, device.name, message)

    def _send(self, device: _Device, action: Action) -> None:
        assert action.direction
        channel = action.peer, action.direction
        number = device.sent[channel]
        device.sent[channel] += 1
        message = self.messages[device.name, action.peer, action.direction, number]
        message.num_bytes = self.work.message_bytes(
            action.direction, action.stage, action.micro_batch
        )
        message.is_sent = True
        self._leave(device.name, action.peer, message)

    def _leave(self, source: str, to: str, message: _Message) -> None:
        if not message.is_sent or (self.is_rendezvous and not message.is_posted):
            return
        link = self.problem.link(source, to)
        start_s = max(self.now, message.asked_s, self.link_free_s[source, to])
        self.link_free_s[source, to] = start_s + message.num_bytes / link.bandwidth_bytes_per_s
        message.arrival_s = self.link_free_s[source, to] + self._latency_s(source, to)

    def _latency_s(self, source: str, to: str) -> float:
        host_s = self._host(source).send_s + self._host(to).receive_s
        return max(self.problem.link(source, to).latency_s - host_s, 0.0)

    def _together(self, device: _Device, action: Action) -> bool:
        """An all-reduce, or parameters that are gathered, for which a device waits."""
        is_gather = action.kind == "gather"
        number = action.bucket + len(self.schedule.buckets) * is_gather
        come, happened = self.come[number], False
        if device.name not in come:
            come.append(device.name)
            happened = True
            if len(come) == len(self.schedule.buckets[action.bucket].devices):
                self.reduced_s[number] = self.now + self._reduce_s(action.bucket)
        if self.reduced_s.get(number, self.now + 1) <= self.now:
            self._done(device)
            return True
        return happened

    def _reduce_s(self, bucket: int) -> float:
        found = self.schedule.buckets[bucket]
        return reduce_s(self.problem, found) / (2 if found.is_sharded else 1)

    def _ready_s(self, device: _Device, action: Action) -> float:
        """When the gradients were complete: within the pass in front."""
        if action.ready_share >= 1:
            return self.now
        at = device.at - 1
        while device.actions[at].kind == "reduce":
            at -= 1
        end_s = self.end_s[device.name][at]
        start_s = self.start_s[device.name, at]
        return start_s + action.ready_share * (end_s - start_s)

    def _time_overlapped(self) -> None:
        """All-reduces whose gradients are complete, in any order that their devices allow."""
        found = True
        while found:
            found = False
            for number, bucket in enumerate(self.schedule.buckets):
                if number in self.reduced_s:
                    continue
                if any((number, name) not in self.ready_s for name in bucket.devices):
                    continue
                before = [self._before(number, name) for name in bucket.devices]
                if any(other not in self.reduced_s for others in before for other in others):
                    continue
                begin_s = max(
                    *(self.ready_s[number, name] for name in bucket.devices),
                    *(self.reduced_s[other] for others in before for other in others),
                    0.0,
                )
                self.reduced_s[number] = begin_s + self._reduce_s(number)
                found = True

    def _before(self, bucket: int, name: str) -> list[int]:
        """The all-reduces in front of one in the list of a device."""
        reduces = [a.bucket for a in self.schedule.actions[name] if a.kind == "reduce"]
        return reduces[: reduces.index(bucket)]

    def _is_reduced(self, device: _Device) -> bool:
        if not self.schedule.overlaps_reduce:
            return True
        own = [action.bucket for action in device.actions if action.kind == "reduce"]
        return all(self.reduced_s.get(bucket, self.now + 1) <= self.now for bucket in own)

    @property
    def step_time_s(self) -> float:
        """When the last device is done."""
        return max(max(times) for times in self.end_s.values())
