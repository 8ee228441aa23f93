"""What messages take: from the times of both ends of each, gathered once a step.

A message is on its way from its departure to its arrival. The sender records the first. The second
is known where the receiver was there before the message and waited: then the end of its action is
the arrival. Processes of one machine share a clock. Those of several count from the start of the
step, which a barrier makes common to them.

A link carries one message at a time. One that departs after the one before it has arrived has the
link for itself, and takes its latency and its bytes. Of one that stands after another, only the
time between the two arrivals is known: its bytes, with less than the latency besides.
"""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_envs.schedule.actions import Action
from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.results.measurements import LinkMeasurement

if TYPE_CHECKING:
    # Workers import no problem.
    from heterps_envs.problem import Problem

# A receiver that was kept for less may have been late: the message lay there.
WAITED_S = 1e-4


class Route(NamedTuple):
    """Messages of one kind: those that a stage sends to one device in one direction.

    Attributes:
        stage: That sends: activations forward, gradients of what it received backward.
    """

    source: str
    destination: str
    stage: str
    direction: str

    def __str__(self) -> str:
        """For people and charts."""
        return f"{self.stage} {self.direction} {self.source}->{self.destination}"


class RouteSeconds(NamedTuple):
    """What a message of a full micro-batch takes on a route.

    Attributes:
        seconds: With latency, alone on its link.
    """

    route: Route
    seconds: float


class Taken(NamedTuple):
    """Median seconds of the messages of one route in one step; None where none is known.

    Attributes:
        alone_s: Of those that had the link for themselves.
        queued_s: Of those after others.
    """

    alone_s: float | None
    queued_s: float | None


class _Message(NamedTuple):
    """Number of its action in the lists of both ends, and the message before it on its link."""

    route: Route
    send: int
    receive: int
    before: int | None
    is_full: bool


def routes_of(plan: Plan, actions: Mapping[str, Sequence[Action]]) -> list[Route]:
    """All routes of a plan, in one order for whoever asks."""
    return list(dict.fromkeys(message.route for message in _messages(plan, actions)))


def route_bytes(profile: ModelProfile, plan: Plan, route: Route) -> float:
    """Bytes of one full micro-batch's message."""
    job, stage = plan.job, plan.stage(route.stage)
    cut = stage.last_layer if route.direction == "forward" else stage.first_layer - 1
    scale = profile.activation_scale(job.dtype) * max(job.micro_batch_sizes)
    return profile.layers[cut].output_bytes * scale


def predicted_seconds(problem: Problem, plan: Plan, routes: Sequence[Route]) -> list[RouteSeconds]:
    """What the links of a problem should take."""
    return [
        RouteSeconds(
            route,
            problem.link(route.source, route.destination).transfer_s(
                route_bytes(problem.profile, plan, route)
            ),
        )
        for route in routes
    ]


def measured_seconds(
    problem: Problem, predicted: Sequence[RouteSeconds], taken: Sequence[Taken]
) -> list[RouteSeconds]:
    """What was measured, as of messages that are alone on their link; unmeasured routes not.

    Of a queued message it is not known how much of the latency was seen: what agrees with the
    prediction counts as predicted, so that no drift is told where there may be none.
    """
    found = []
    for (route, predicted_s), (alone_s, queued_s) in zip(predicted, taken, strict=True):
        latency_s = problem.link(route.source, route.destination).latency_s
        if alone_s is None and queued_s is not None:
            with_latency_s = queued_s + latency_s
            alone_s = min(max(predicted_s, queued_s), with_latency_s)
        if alone_s is not None:
            found.append(RouteSeconds(route, alone_s))
    return found


class LinkTimes:
    """Takes the times of all messages of a plan.

    Args:
        plan: What runs.
        actions: Its action lists.
        ranks: Of its devices.
        machines: Which one each rank runs on.

    Attributes:
        routes: In the order of `routes_of`.
        width: Numbers that a rank tells.
    """

    def __init__(
        self,
        plan: Plan,
        actions: Mapping[str, Sequence[Action]],
        ranks: Mapping[str, int],
        machines: Sequence[str],
    ) -> None:
        messages = _messages(plan, actions)
        self.routes = list(dict.fromkeys(message.route for message in messages))
        self._columns = {
            device: [i for i, action in enumerate(own) if action.kind in ("send", "receive")]
            for device, own in actions.items()
        }
        most = max((len(columns) for columns in self._columns.values()), default=0)
        self.width = 1 + most if most else 0
        place = {
            (device, number): ranks[device] * most + column
            for device, numbers in self._columns.items()
            for column, number in enumerate(numbers)
        }
        # Places in the gathered numbers; a message without one before it stands after a zero.
        sends = [place[message.route.source, message.send] for message in messages]
        receives = [place[message.route.destination, message.receive] for message in messages]
        nowhere = len(ranks) * most
        before = [nowhere if m.before is None else receives[m.before] for m in messages]
        self._send, self._receive, self._before = map(np.array, (sends, receives, before))
        firsts = [machines.index(machine) for machine in machines]
        self._with_clock = [
            np.flatnonzero(np.array(firsts) == rank) for rank in sorted(set(firsts))
        ]
        self._of_route = [
            np.array([i for i, m in enumerate(messages) if m.route == route and m.is_full], int)
            for route in self.routes
        ]

    def row(self, device: str, start_s: float, records: Sequence[ActionRecord]) -> list[float]:
        """What a rank tells: its start, departures, arrivals (negative where it did not wait).

        Args:
            device: Of the rank.
            start_s: When its step began, by its clock.
            records: With times from there.
        """
        row = [0.0] * self.width
        if row:
            row[0] = start_s
        for column, number in enumerate(self._columns.get(device, ()), start=1):
            record = records[number]
            is_known = record.kind == "send" or record.end_s - record.start_s > WAITED_S
            row[column] = record.end_s if is_known else -record.end_s
        return row

    def taken(self, rows: Sequence[Sequence[float]]) -> list[Taken]:
        """Medians of a step.

        Args:
            rows: Of all ranks.
        """
        if not self.routes:
            return []
        told = np.array(rows, float)
        starts_s, ends_s = told[:, 0], told[:, 1:]
        for ranks in self._with_clock:
            starts_s[ranks] -= starts_s[ranks].min()
        # Later by what the rank began later; the sign stays.
        numbers = np.append((ends_s + np.sign(ends_s) * starts_s[:, None]).ravel(), 0.0)
        departures, ends, before = (numbers[i] for i in (self._send, self._receive, self._before))
        departures, is_known = np.abs(departures), ends > 0
        is_alone = is_known & (departures >= np.abs(before))
        # A message in front that its receiver let lie has arrived some time before its end.
        is_queued = is_known & ~is_alone & (before > 0)
        seconds = np.where(is_alone, ends - departures, ends - before)
        return [
            Taken(_median(seconds[own][is_alone[own]]), _median(seconds[own][is_queued[own]]))
            for own in self._of_route
        ]


class LinkWindow:
    """Collects what routes take until it is published."""

    def __init__(self, profile: ModelProfile, plan: Plan, routes: Sequence[Route]) -> None:
        self._profile, self._plan, self._routes = profile, plan, routes
        self._seconds: dict[tuple[Route, bool], list[float]] = defaultdict(list)

    def add(self, taken: Sequence[Taken]) -> None:
        """Takes one step."""
        for route, (alone_s, queued_s) in zip(self._routes, taken, strict=True):
            if alone_s is not None:
                self._seconds[route, False].append(alone_s)
            if queued_s is not None:
                self._seconds[route, True].append(queued_s)

    def measurements(self) -> tuple[LinkMeasurement, ...]:
        """Medians of the window."""
        return tuple(
            LinkMeasurement(
                source=route.source,
                destination=route.destination,
                num_bytes=route_bytes(self._profile, self._plan, route),
                seconds=statistics.median(seconds),
                is_queued=is_queued,
                num_samples=len(seconds),
            )
            for (route, is_queued), seconds in self._seconds.items()
        )

    def clear(self) -> None:
        """Begins a new window."""
        self._seconds.clear()


def _median(values: NDArray[np.float64]) -> float | None:
    if not len(values):
        return None
    # np.median takes five times as long for so few.
    ordered = np.sort(values)
    middle = (len(values) - 1) / 2
    return float(ordered[math.floor(middle)] + ordered[math.ceil(middle)]) / 2


def _messages(plan: Plan, actions: Mapping[str, Sequence[Action]]) -> list[_Message]:
    """All messages: the nth of a direction that leaves for a device is the nth that it receives."""
    sizes = plan.job.micro_batch_sizes
    receives: dict[tuple[str, str, str], list[int]] = defaultdict(list)
    for device, own in actions.items():
        for number, action in enumerate(own):
            if action.kind == "receive":
                receives[action.peer, device, action.direction].append(number)
    messages: list[_Message] = []
    for device, own in actions.items():
        num_sent: dict[tuple[str, str, str], int] = defaultdict(int)
        last: dict[str, int] = {}
        for number, action in enumerate(own):
            if action.kind != "send":
                continue
            way = device, action.peer, action.direction
            receive = receives[way][num_sent[way]]
            num_sent[way] += 1
            is_full = sizes[action.micro_batch] == max(sizes)
            route = Route(device, action.peer, action.stage, action.direction)
            messages.append(_Message(route, number, receive, last.get(action.peer), is_full))
            last[action.peer] = len(messages) - 1
    return messages
