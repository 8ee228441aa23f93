"""The list scheduler in plain Python: what `heterps_envs.schedule.kernels` must agree with."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Action, Direction, PassKind
from heterps_envs.schedule.in_flight import in_flight_micro_batches
from heterps_envs.schedule.interleaved import (
    has_full_groups,
    interleaved_ranks,
    is_interleaved,
    textbook_order,
)
from heterps_envs.schedule.kernels import SIMULTANEOUS
from heterps_envs.schedule.plan_arrays import plan_arrays
from heterps_envs.schedule.workload import workload
from heterps_envs.schedule.zero_bubble import held_of_stages


def reference_lists(problem: Problem, plan: Plan) -> dict[str, list[Action]]:
    """Passes and messages of every device."""
    coded = textbook_order(plan) if is_interleaved(plan) else None
    if coded is None:
        return _ListScheduler(problem, plan).run()
    names, num_micro_batches = [stage.name for stage in plan.stages], plan.job.num_micro_batches
    order = []
    for passes in coded:
        rest, m = np.divmod(passes, num_micro_batches)
        is_backward, stage = np.divmod(rest, len(names))
        order.append(
            [(bool(b), names[s], int(i)) for b, s, i in zip(is_backward, stage, m, strict=True)]
        )
    fixed = _ListScheduler(problem, plan, order)
    lists = fixed.run()
    costs = list(fixed.work.stages.values())
    times = {(cost.forward_s, cost.backward_s) for cost in costs}
    if fixed.is_complete and len(times) == 1 and has_full_groups(plan):
        return lists
    free = _ListScheduler(problem, plan)
    free_lists = free.run()
    return free_lists if free.end_s < fixed.end_s or not fixed.is_complete else lists


def held_micro_batches(problem: Problem, plan: Plan) -> dict[str, int]:
    """What lists are made for: micro-batches that each stage keeps activations of at most."""
    held = held_of_stages(problem, plan, plan_arrays(problem, plan)).tolist()
    return dict(zip([stage.name for stage in plan.stages], held, strict=True))


class _Pass(NamedTuple):
    """A pass that waits for its device."""

    group: int
    rank: int
    micro_batch: int
    stage: str


class _Event(NamedTuple):
    """A pass ends on its device, or becomes ready for it."""

    time_s: float
    number: int  # events of one time are handled in the order in which they were made
    ends: bool
    kind: PassKind
    stage: str
    micro_batch: int


class _ListScheduler:
    """One event-driven run of a plan that writes down what every device does."""

    def __init__(
        self,
        problem: Problem,
        plan: Plan,
        order: list[list[tuple[bool, str, int]]] | None = None,
    ) -> None:
        self.problem, self.plan, self.work = problem, plan, workload(problem, plan)
        self.is_gpipe = plan.job.schedule == "gpipe"
        self.is_split = plan.job.schedule == "zero-bubble"
        self.whole: PassKind = "backward-input" if self.is_split else "backward"
        self.order = dict(zip(plan.devices, map(deque, order), strict=True)) if order else None
        self.room = in_flight_micro_batches(plan)
        self.held = held_micro_batches(problem, plan)
        self.end_s = 0.0
        names = [stage.name for stage in plan.stages]
        depth = {stage.name: -stage.first_layer for stage in plan.stages}
        self.group = list(range(plan.job.num_micro_batches))
        self.forward_rank, self.backward_rank = depth, depth
        if is_interleaved(plan):
            ranks = interleaved_ranks(plan)
            self.group = ranks.group.tolist()
            self.forward_rank = dict(zip(names, ranks.chunk.tolist(), strict=True))
            self.backward_rank = {name: -chunk for name, chunk in self.forward_rank.items()}
        self.weights: dict[str, dict[str, list[_Pass]]] = {
            device: {stage.name: [] for stage in plan.stages if stage.devices[0] == device}
            for device in plan.devices
        }
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

    @property
    def is_complete(self) -> bool:
        return self.order is None or not any(self.order.values())

    def _at(self, time_s: float, ends: bool, kind: PassKind, stage: str, micro_batch: int) -> None:
        self.num_events += 1
        heapq.heappush(self.events, _Event(time_s, self.num_events, ends, kind, stage, micro_batch))

    def _handle_events(self) -> tuple[float, list[str]]:
        """Handles all events of the next moment; returns it, and the devices that they touch."""
        now = self.events[0].time_s
        until = now * (1 + SIMULTANEOUS)
        touched: dict[str, None] = {}
        while self.events and self.events[0].time_s <= until:
            event = heapq.heappop(self.events)
            now = self.end_s = event.time_s
            touched[self.work.stages[event.stage].device] = None
            if event.ends:
                self._end(now, event.kind, event.stage, event.micro_batch)
            else:
                self._make_ready(event.kind, event.stage, event.micro_batch)
        return now, list(touched)

    def _make_ready(self, kind: PassKind, stage: str, micro_batch: int) -> None:
        device = self.work.stages[stage].device
        queue = {
            "forward": self.forward[device].setdefault(stage, []),
            "backward-weight": self.weights[device][stage],
        }.get(kind, self.backward[device])
        ranks = self.forward_rank if kind == "forward" else self.backward_rank
        heapq.heappush(queue, _Pass(self.group[micro_batch], ranks[stage], micro_batch, stage))

    def _start_passes(self, now: float, devices: list[str]) -> None:
        for device in devices:
            chosen = None if device in self.busy else self._choose(device)
            if chosen is not None:
                kind, (_, _, micro_batch, stage) = chosen
                if kind != "backward-weight":
                    direction: Direction = "forward" if kind == "forward" else "backward"
                    self._receive(device, direction, stage, micro_batch)
                self.lists[device].append(Action(kind, stage, micro_batch))
                self.busy.add(device)
                end_s = now + self.work.seconds(kind, stage, micro_batch)
                self._at(end_s, True, kind, stage, micro_batch)

    def _choose(self, device: str) -> tuple[PassKind, _Pass] | None:
        """Takes the next pass of a free device out of its queue."""
        if self.order is not None:
            return self._next_in_order(device)
        open_queues = [
            queue for stage, queue in self.forward[device].items() if queue and self.room[stage]
        ]
        if open_queues:
            first = min(open_queues)
            stage = first[0].stage
            if not self.held[stage]:
                return "backward-weight", heapq.heappop(self.weights[device][stage])
            self.room[stage] -= 1
            self.held[stage] -= 1
            self.forwards_left[device] -= 1
            return "forward", heapq.heappop(first)
        must_wait = self.is_gpipe and self.forwards_left[device] > 0
        if self.backward[device] and not must_wait:
            return self.whole, heapq.heappop(self.backward[device])
        put_off = [queue for queue in self.weights[device].values() if queue]
        return ("backward-weight", heapq.heappop(min(put_off))) if put_off else None

    def _next_in_order(self, device: str) -> tuple[PassKind, _Pass] | None:
        assert self.order is not None
        if not self.order[device]:
            return None
        is_backward, stage, micro_batch = self.order[device][0]
        queue = self.backward[device] if is_backward else self.forward[device].get(stage, [])
        for chosen in queue:
            if (chosen.stage, chosen.micro_batch) == (stage, micro_batch):
                queue.remove(chosen)
                heapq.heapify(queue)
                self.order[device].popleft()
                return ("backward" if is_backward else "forward"), chosen
        return None

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

    def _end(self, now: float, kind: PassKind, stage: str, micro_batch: int) -> None:
        device = self.work.stages[stage].device
        self.busy.remove(device)
        self.room[stage] += kind == self.whole
        self.held[stage] += kind in ("backward", "backward-weight")
        if kind == "backward-weight":
            return
        if kind == "backward-input":
            self._make_ready("backward-weight", stage, micro_batch)
        direction: Direction = "forward" if kind == "forward" else "backward"
        following: PassKind = "forward" if kind == "forward" else self.whole
        target = self.work.target(direction, stage, micro_batch)
        if target is None:
            if kind == "forward":
                self._make_ready(self.whole, stage, micro_batch)
        elif self.work.stages[target].device == device:
            self._make_ready(following, target, micro_batch)
        else:
            arrival_s = self._send(now, direction, stage, target, micro_batch)
            self._at(arrival_s, False, following, target, micro_batch)

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
