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
from collections import defaultdict, deque
from collections.abc import Iterable
from typing import Literal, NamedTuple

from heterps_configs.plan import Plan
from heterps_envs.actions import Action, ReduceBucket, Schedule
from heterps_envs.memory import in_flight_micro_batches, tied_layers
from heterps_envs.placement import check_plan
from heterps_envs.problem import Problem

Direction = Literal["forward", "backward"]

# Events closer than this share of the clock are simultaneous: sums of equal times differ by rounding.
SIMULTANEOUS = 1e-10


class StageCost(NamedTuple):
    """One stage of a plan: its device, seconds of a full micro-batch, bytes over the cut behind it."""

    device: str
    forward_s: float
    backward_s: float
    output_bytes: float


class Workload(NamedTuple):
    """What the simulator and the list scheduler need of a plan.

    Attributes:
        stages: Costs by stage name.
        routes: For each micro-batch, the names of its stages in order.
        shares: For each micro-batch, its samples over those of a full one. Tables hold the seconds
            and bytes of a full micro-batch; a smaller last one is charged this share.
    """

    stages: dict[str, StageCost]
    routes: tuple[tuple[str, ...], ...]
    shares: tuple[float, ...]

    def seconds(self, kind: Direction, stage: str, micro_batch: int) -> float:
        """Compute seconds of one pass."""
        cost = self.stages[stage]
        return self.shares[micro_batch] * (cost.forward_s if kind == "forward" else cost.backward_s)


def workload(problem: Problem, plan: Plan) -> Workload:
    """Collects the costs of a plan.

    Raises:
        PlanMismatchError: The plan belongs to another model, cluster or job.
    """
    check_plan(problem, plan)
    tables = problem.tables
    stages = {}
    for stage in plan.stages:
        part, kind = slice(stage.first_layer, stage.last_layer + 1), stage.devices[0]
        column = problem.class_of[kind]
        stages[stage.name] = StageCost(
            kind,
            float(tables.forward_s[part, column].sum()),
            float(tables.backward_s[part, column].sum()),
            float(tables.output_bytes[stage.last_layer]),
        )
    routes = {m: pipe.stages for pipe in plan.pipelines for m in pipe.micro_batches}
    sizes = problem.job.micro_batch_sizes
    return Workload(
        stages,
        tuple(routes[m] for m in range(len(sizes))),
        tuple(size / sizes[0] for size in sizes),
    )


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
    depth: int  # minus the position of the stage in its route
    stage: str


class _ListScheduler:
    """One event-driven run of a plan that writes down what every device does."""

    def __init__(self, problem: Problem, plan: Plan) -> None:
        self.problem, self.work = problem, workload(problem, plan)
        self.is_gpipe = plan.job.schedule == "gpipe"
        self.room = in_flight_micro_batches(plan)
        self.position = {name: i for pipe in plan.pipelines for i, name in enumerate(pipe.stages)}
        self.lists: dict[str, list[Action]] = {device: [] for device in plan.devices}
        self.backward: dict[str, list[_Pass]] = {device: [] for device in plan.devices}
        self.forward: dict[str, dict[str, list[_Pass]]] = {d: {} for d in plan.devices}
        self.forwards_left: dict[str, int] = defaultdict(int)
        for route in self.work.routes:
            for stage in route:
                self.forwards_left[self.work.stages[stage].device] += 1
        self.busy: set[str] = set()
        self.link_free_s: dict[tuple[str, str], float] = defaultdict(float)
        # Sent and not yet received, by (source, destination, direction).
        self.under_way: dict[tuple[str, str, Direction], deque[Action]] = defaultdict(deque)
        self.received: set[tuple[Direction, str, int]] = set()
        # (time, tie-break, what): a pass ("forward"/"backward") that ends, or one that becomes ready.
        self.events: list[tuple[float, int, bool, Direction, str, int]] = []
        self.num_events = 0

    def run(self) -> dict[str, list[Action]]:
        for micro_batch, route in enumerate(self.work.routes):
            self._at(0.0, False, "forward", route[0], micro_batch)
        while self.events:
            now = self.events[0][0]
            touched: dict[str, None] = {}
            while self.events and self.events[0][0] <= now * (1 + SIMULTANEOUS):
                time_s, _, ends, kind, stage, micro_batch = heapq.heappop(self.events)
                touched[self.work.stages[stage].device] = None
                if ends:
                    self._end(time_s, kind, stage, micro_batch)
                else:
                    self._make_ready(kind, stage, micro_batch)
                now = time_s
            self._start_passes(touched, now)
        return self.lists

    def _at(self, time_s: float, ends: bool, kind: Direction, stage: str, micro_batch: int) -> None:
        self.num_events += 1
        heapq.heappush(self.events, (time_s, self.num_events, ends, kind, stage, micro_batch))

    def _make_ready(self, kind: Direction, stage: str, micro_batch: int) -> None:
        device = self.work.stages[stage].device
        entry = _Pass(micro_batch, -self.position[stage], stage)
        queue = (
            self.backward[device]
            if kind == "backward"
            else self.forward[device].setdefault(stage, [])
        )
        heapq.heappush(queue, entry)

    def _start_passes(self, devices: Iterable[str], now: float) -> None:
        for device in devices:
            if device in self.busy:
                continue
            chosen = self._choose(device)
            if chosen is None:
                continue
            kind, entry = chosen
            self._receive(device, kind, entry)
            self.lists[device].append(Action(kind, entry.stage, entry.micro_batch))
            self.busy.add(device)
            end_s = now + self.work.seconds(kind, entry.stage, entry.micro_batch)
            self._at(end_s, True, kind, entry.stage, entry.micro_batch)

    def _choose(self, device: str) -> tuple[Direction, _Pass] | None:
        """The next pass of a free device, taken out of its queue."""
        open_queues = [
            queue for stage, queue in self.forward[device].items() if queue and self.room[stage]
        ]
        if open_queues:
            entry = heapq.heappop(min(open_queues))
            self.room[entry.stage] -= 1
            self.forwards_left[device] -= 1
            return "forward", entry
        must_wait = self.is_gpipe and self.forwards_left[device] > 0
        if must_wait or not self.backward[device]:
            return None
        return "backward", heapq.heappop(self.backward[device])

    def _receive(self, device: str, kind: Direction, entry: _Pass) -> None:
        """Receives what the pass needs, and before it all that the same sender sent earlier."""
        source = self._neighbour(kind, entry.stage, entry.micro_batch, back=True)
        if source is None or self.work.stages[source].device == device:
            return
        sender = self.work.stages[source].device
        wanted = (kind, entry.stage, entry.micro_batch)
        while wanted not in self.received:
            message = self.under_way[sender, device, kind].popleft()
            self.received.add((kind, message.stage, message.micro_batch))
            self.lists[device].append(message)

    def _end(self, now: float, kind: Direction, stage: str, micro_batch: int) -> None:
        device = self.work.stages[stage].device
        self.busy.discard(device)
        if kind == "backward":
            self.room[stage] += 1
        following = self._neighbour(kind, stage, micro_batch, back=False)
        if following is None:
            if kind == "forward":
                self._make_ready("backward", stage, micro_batch)
        elif self.work.stages[following].device == device:
            self._make_ready(kind, following, micro_batch)
        else:
            arrival_s = self._send(now, kind, stage, following, micro_batch)
            self._at(arrival_s, False, kind, following, micro_batch)

    def _send(
        self, now: float, kind: Direction, stage: str, following: str, micro_batch: int
    ) -> float:
        source, target = self.work.stages[stage].device, self.work.stages[following].device
        front = stage if kind == "forward" else following
        num_bytes = self.work.shares[micro_batch] * self.work.stages[front].output_bytes
        link = self.problem.link(source, target)
        free_s = max(now, self.link_free_s[source, target])
        free_s += num_bytes / link.bandwidth_bytes_per_s
        self.link_free_s[source, target] = free_s
        self.lists[source].append(Action("send", stage, micro_batch, kind, target))
        self.under_way[source, target, kind].append(
            Action("receive", following, micro_batch, kind, source)
        )
        return free_s + link.latency_s

    def _neighbour(self, kind: Direction, stage: str, micro_batch: int, back: bool) -> str | None:
        """The stage that the micro-batch comes from (`back`) or goes to, in this direction."""
        route = self.work.routes[micro_batch]
        step = 1 if (kind == "forward") != back else -1
        position = self.position[stage] + step
        return route[position] if 0 <= position < len(route) else None
