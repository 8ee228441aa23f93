"""Schedules: the action list of every device for one step, by list scheduling on predicted times.

1F1B: each device, whenever it is free, takes a forward pass if its stage may hold one more
micro-batch, else a backward pass. At the limit that is one backward, one forward in turn, and for
equal stages without replicas it is the textbook order, with S - s forwards on stage s first. (With
the backward pass preferred, a slow stage in front takes its backwards in a row and the stages
behind it run dry.) GPipe: all forwards of a device, then its backwards. The lists are cut from one
run on a common clock, every action after all that it waits for: executed with blocking receives
they cannot deadlock.
"""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from typing import NamedTuple

from heterps_configs.plan import Plan
from heterps_envs.actions import Action, ReduceBucket, Schedule
from heterps_envs.memory import in_flight_micro_batches
from heterps_envs.problem import Problem
from heterps_envs.workload import Direction, tied_layers
from heterps_envs.workload import Workload as Workload
from heterps_envs.workload import workload as workload

# Events closer than this share of the clock are simultaneous: sums of times differ by rounding.
SIMULTANEOUS = 1e-10


def build_schedule(problem: Problem, plan: Plan) -> Schedule:
    """The action lists of one step of a plan.

    Messages of one direction between two devices are received in the order in which they are sent.
    Neighbouring stages on one device exchange no message. After its last pass every device reduces
    its gradient buckets, in one global order, and steps.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    lists = _ListScheduler(problem, plan).run()
    buckets = reduce_buckets(problem, plan)
    return Schedule(
        {
            device: (
                *lists[device],
                *(
                    Action("reduce", bucket=index)
                    for index, bucket in enumerate(buckets)
                    if device in bucket.devices
                ),
                Action("step"),
            )
            for device in plan.devices
        },
        buckets,
    )


def reduce_buckets(problem: Problem, plan: Plan) -> tuple[ReduceBucket, ...]:
    """Layers grouped by the devices that hold their gradients, where there are several, back first.

    A tied layer stands for the parameters that it shares: its devices are those of the owner of
    the parameters and of all their users.
    """
    owners: dict[int, set[str]] = defaultdict(set)
    for stage in plan.stages:
        for layer in stage.layers:
            owners[layer].update(stage.devices)
    for owner, users in tied_layers(problem.profile).items():
        together = owners[owner].union(*(owners[user] for user in users))
        owners.update(dict.fromkeys(users, together))
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for layer in range(plan.num_layers):
        if len(owners[layer]) > 1:
            groups[tuple(d for d in problem.device_named if d in owners[layer])].append(layer)
    buckets = [ReduceBucket(devices, tuple(layers)) for devices, layers in groups.items()]
    return tuple(sorted(buckets, key=lambda bucket: bucket.layers, reverse=True))


class _Pass(NamedTuple):
    """A pass that waits for its device: the oldest goes first, then the deepest."""

    micro_batch: int
    depth: int  # minus the first layer of the stage
    stage: str


class _Event(NamedTuple):
    """A pass ends on its device, or becomes ready for it."""

    time_s: float
    number: int  # events of one time are handled in the order in which they were made
    ends: bool
    kind: Direction
    stage: str
    micro_batch: int


class _ListScheduler:
    """One event-driven run of a plan that writes down what every device does."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.plan, self.work = problem, plan, workload(problem, plan)
        self.is_gpipe = plan.job.schedule == "gpipe"
        self.room = in_flight_micro_batches(plan)
        self.lists: dict[str, list[Action]] = {device: [] for device in plan.devices}
        self.forward: dict[str, dict[str, list[_Pass]]] = {name: {} for name in plan.devices}
        self.backward: dict[str, list[_Pass]] = {name: [] for name in plan.devices}
        self.forwards_left: Counter[str] = Counter()
        self.busy: set[str] = set()
        self.link_free_s: dict[tuple[str, str], float] = defaultdict(float)
        # Messages sent and not yet received, by (source, destination, direction).
        self.under_way: dict[tuple[str, str, Direction], deque[Action]] = defaultdict(deque)
        self.received: set[tuple[Direction, str, int]] = set()
        self.events: list[_Event] = []
        self.num_events = 0

    def run(self) -> dict[str, list[Action]]:
        """The passes and messages of every device, in order."""
        for pipeline in self.plan.pipelines:
            for name in pipeline.stages:
                self.forward[self.work.stages[name].device].setdefault(name, [])
                self.forwards_left[self.work.stages[name].device] += len(pipeline.micro_batches)
            for micro_batch in pipeline.micro_batches:
                self._at(0.0, False, "forward", pipeline.stages[0], micro_batch)
        while self.events:
            self._start_passes(*self._handle_events())
        return self.lists

    def _at(self, time_s: float, ends: bool, kind: Direction, stage: str, micro_batch: int) -> None:
        self.num_events += 1
        heapq.heappush(self.events, _Event(time_s, self.num_events, ends, kind, stage, micro_batch))

    def _handle_events(self) -> tuple[float, list[str]]:
        """Handles all events of the next moment; returns it, and the devices that they touch."""
        now = self.events[0].time_s
        until = now * (1 + SIMULTANEOUS)
        touched: dict[str, None] = {}
        while self.events and self.events[0].time_s <= until:
            event = heapq.heappop(self.events)
            now = event.time_s
            touched[self.work.stages[event.stage].device] = None
            if event.ends:
                self._end(now, event.kind, event.stage, event.micro_batch)
            else:
                self._make_ready(event.kind, event.stage, event.micro_batch)
        return now, list(touched)

    def _make_ready(self, kind: Direction, stage: str, micro_batch: int) -> None:
        cost = self.work.stages[stage]
        queue = (
            self.forward[cost.device][stage] if kind == "forward" else self.backward[cost.device]
        )
        heapq.heappush(queue, _Pass(micro_batch, -cost.first_layer, stage))

    def _start_passes(self, now: float, devices: list[str]) -> None:
        for device in devices:
            chosen = None if device in self.busy else self._choose(device)
            if chosen is not None:
                kind, (micro_batch, _, stage) = chosen
                self._receive(device, kind, stage, micro_batch)
                self.lists[device].append(Action(kind, stage, micro_batch))
                self.busy.add(device)
                end_s = now + self.work.seconds(kind, stage, micro_batch)
                self._at(end_s, True, kind, stage, micro_batch)

    def _choose(self, device: str) -> tuple[Direction, _Pass] | None:
        """Takes the next pass of a free device out of its queue."""
        open_queues = [
            queue for stage, queue in self.forward[device].items() if queue and self.room[stage]
        ]
        if open_queues:
            chosen = heapq.heappop(min(open_queues))
            self.room[chosen.stage] -= 1
            self.forwards_left[device] -= 1
            return "forward", chosen
        must_wait = self.is_gpipe and self.forwards_left[device] > 0
        if must_wait or not self.backward[device]:
            return None
        return "backward", heapq.heappop(self.backward[device])

    def _receive(self, device: str, kind: Direction, stage: str, micro_batch: int) -> None:
        """Receives what the pass needs, and before it all that the same sender sent earlier."""
        source = self.work.source(kind, stage, micro_batch)
        if source is None or self.work.stages[source].device == device:
            return
        messages = self.under_way[self.work.stages[source].device, device, kind]
        while (kind, stage, micro_batch) not in self.received:
            message = messages.popleft()
            self.received.add((kind, message.stage, message.micro_batch))
            self.lists[device].append(message)

    def _end(self, now: float, kind: Direction, stage: str, micro_batch: int) -> None:
        device = self.work.stages[stage].device
        self.busy.remove(device)
        if kind == "backward":
            self.room[stage] += 1
        target = self.work.target(kind, stage, micro_batch)
        if target is None:
            if kind == "forward":
                self._make_ready("backward", stage, micro_batch)
        elif self.work.stages[target].device == device:
            self._make_ready(kind, target, micro_batch)
        else:
            arrival_s = self._send(now, kind, stage, target, micro_batch)
            self._at(arrival_s, False, kind, target, micro_batch)

    def _send(
        self, now: float, kind: Direction, stage: str, target: str, micro_batch: int
    ) -> float:
        """Puts the message on its link; returns when it arrives."""
        ends = self.work.stages[stage].device, self.work.stages[target].device
        link = self.problem.link(*ends)
        num_bytes = self.work.message_bytes(kind, stage, micro_batch)
        self.link_free_s[ends] = (
            max(now, self.link_free_s[ends]) + num_bytes / link.bandwidth_bytes_per_s
        )
        self.lists[ends[0]].append(Action("send", stage, micro_batch, kind, ends[1]))
        self.under_way[*ends, kind].append(Action("receive", target, micro_batch, kind, ends[0]))
        return self.link_free_s[ends] + link.latency_s
