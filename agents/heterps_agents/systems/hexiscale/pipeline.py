"""The best pipeline over some devices: groups, their order, and layers for each."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.degrees import at_degree
from heterps_agents.systems.hexiscale.graph import LEAST_BYTES, LEAST_S, DeviceGraph
from heterps_agents.systems.hexiscale.layers import (
    BLENDS,
    StageTimes,
    proportional_ends,
    with_room,
)
from heterps_agents.systems.hexiscale.stages import Group, groups_of, orders
from heterps_envs.arrays import Floats
from heterps_envs.problem import Problem


class Pipe(NamedTuple):
    """A pipeline.

    Attributes:
        groups: Of its stages, from the front.
        ends: Of its stages, the layer behind the last.
        fill_s: One micro-batch through all of it, there and back.
        period_s: From one micro-batch to the next.
        most: Micro-batches that it has room for.
    """

    groups: tuple[Group, ...]
    ends: tuple[int, ...]
    fill_s: float
    period_s: float
    most: int

    def seconds(self, num_micro_batches: int) -> float:
        """Of so many micro-batches, one or more."""
        return self.fill_s + (num_micro_batches - 1) * self.period_s


class _Layers(NamedTuple):
    """(L + 1, T) of all layers before a cut, on each class; (T,) room."""

    compute_s: Floats
    state_bytes: Floats
    activation_bytes: Floats
    room_bytes: Floats


class PipelineMaker:
    """Makes pipelines of one problem.

    Args:
        problem: The problem.
        graph: Its devices.
        degrees: Devices that a group may have.
    """

    def __init__(self, problem: Problem, graph: DeviceGraph, degrees: Sequence[int]) -> None:
        self._problem, self._graph, self._degrees = problem, graph, tuple(degrees)
        self._layers = {degree: _layers_of(problem, degree) for degree in degrees}
        self._known: dict[tuple[tuple[int, ...], int], Pipe | None] = {}

    def best(self, kinds: Sequence[Sequence[str]], num_micro_batches: int) -> Pipe | None:
        """The quickest of its pipelines for so many micro-batches; None: none has room.

        Args:
            kinds: Devices of each kind.
            num_micro_batches: That it is expected to have.
        """
        key = tuple(map(len, kinds)), num_micro_batches
        if key not in self._known:
            found = self._pipes(kinds, num_micro_batches)
            self._known[key] = min(
                found, key=lambda pipe: pipe.seconds(num_micro_batches), default=None
            )
        known = self._known[key]
        return known and _renamed(known, kinds)

    def _pipes(self, kinds: Sequence[Sequence[str]], num_micro_batches: int) -> Iterator[Pipe]:
        for most in self._degrees:
            groups = groups_of(kinds, most, self._degrees)
            if not groups or max(group.degree for group in groups) < most:
                continue
            for order in orders(self._graph, groups):
                for wanted in self._wanted(order):
                    pipe = self._pipe(order, wanted, num_micro_batches)
                    # Neighbours without a link are no pipeline.
                    if pipe is not None and math.isfinite(pipe.fill_s):
                        yield pipe

    def _wanted(self, order: Sequence[Group]) -> list[tuple[int, ...]]:
        """Where stages end by speed, by memory, and by blends of both."""
        speed = np.array([self._speed(group) for group in order])
        room = np.array([self._room(group) for group in order])
        fastest = self._column(order[int(speed.argmax())]).compute_s
        by_speed, by_room = speed / speed.sum(), room / room.sum()
        shares = ((1 - blend) * by_speed + blend * by_room for blend in BLENDS)
        return list(dict.fromkeys(proportional_ends(fastest, each) for each in shares))

    def _pipe(
        self, order: Sequence[Group], wanted: Sequence[int], num_micro_batches: int
    ) -> Pipe | None:
        """Groups whose share is less than half a layer are idle."""
        firsts = (0, *wanted[:-1])
        used = [place for place, end in enumerate(wanted) if end > firsts[place]]
        groups = [order[place] for place in used]
        stages = [
            self._column(group)._replace(held=self._held(len(groups) - place, num_micro_batches))
            for place, group in enumerate(groups)
        ]
        ends = with_room(stages, [wanted[place] for place in used])
        return None if ends is None else self._timed(groups, stages, ends)

    def _timed(
        self, groups: Sequence[Group], stages: Sequence[StageTimes], ends: Sequence[int]
    ) -> Pipe:
        parts = list(zip(stages, [0, *ends[:-1]], ends, strict=True))
        compute_s = [float(own.compute_s[end] - own.compute_s[first]) for own, first, end in parts]
        messages = [
            self._message(one, other, end)
            for (one, other), end in zip(pairwise(groups), ends, strict=False)
        ]
        total = self._problem.job.num_micro_batches
        most = total
        for behind, (stage, first, end) in zip(range(len(parts), 0, -1), parts, strict=True):
            in_flight = stage.most_in_flight(first, end)
            if self._problem.tables.is_gpipe or in_flight < behind:
                most = int(min(most, in_flight))
        return Pipe(
            tuple(groups),
            tuple(ends),
            sum(compute_s) + 2 * sum(map(sum, messages)),
            self._period_s(compute_s, messages),
            most,
        )

    def _period_s(
        self, compute_s: Sequence[float], messages: Sequence[tuple[float, float]]
    ) -> float:
        """Of the slowest stage or link; under 1F1B also of the slowest round trip.

        A stage has as many micro-batches on their way as there are stages from it to the end.
        """
        longest_s = max([*compute_s, *(sent_s for _, sent_s in messages)])
        if self._problem.tables.is_gpipe:
            return longest_s
        trip_s = 0.0
        for behind in range(len(compute_s)):
            stage = len(compute_s) - 1 - behind
            trip_s += compute_s[stage] + (2 * sum(messages[stage]) if behind else 0.0)
            longest_s = max(longest_s, trip_s / (behind + 1))
        return longest_s

    def _message(self, one: Group, other: Group, end: int) -> tuple[float, float]:
        """Over a cut, one way: until it arrives, and how long it keeps its link."""
        here, there = (self._graph.node_of[group.kind] for group in (one, other))
        sent = float(self._problem.tables.output_bytes[end - 1])
        latency_s = float(self._graph.latency_s[here, there])
        return latency_s, sent * float(self._graph.s_per_byte[here, there])

    def _held(self, behind: int, num_micro_batches: int) -> int:
        """Micro-batches in flight with so many stages from here to the end."""
        return (
            num_micro_batches if self._problem.tables.is_gpipe else min(behind, num_micro_batches)
        )

    def _column(self, group: Group) -> StageTimes:
        own, column = self._layers[group.degree], self._graph.class_of[group.kind]
        return StageTimes(
            own.compute_s[:, column],
            own.state_bytes[:, column],
            own.activation_bytes[:, column],
            float(own.room_bytes[column]),
        )

    def _speed(self, group: Group) -> float:
        seconds = self._layers[group.degree].compute_s[-1, self._graph.class_of[group.kind]]
        return 1 / max(float(seconds), LEAST_S)

    def _room(self, group: Group) -> float:
        room = float(self._layers[group.degree].room_bytes[self._graph.class_of[group.kind]])
        return max(room, LEAST_BYTES) * group.degree


def _layers_of(problem: Problem, degree: int) -> _Layers:
    own = at_degree(problem, degree)
    return _Layers(
        before_cuts(own.compute_s),
        before_cuts(own.state_bytes),
        before_cuts(own.activation_bytes),
        own.memory_bytes,
    )


def before_cuts(values: Floats) -> Floats:
    """(L + 1, T) of all layers before a cut, from (L, T) of each layer."""
    return np.concatenate((np.zeros((1, values.shape[1])), np.cumsum(values, axis=0)))


def _renamed(pipe: Pipe, kinds: Sequence[Sequence[str]]) -> Pipe:
    """The same pipeline on other devices of the same kinds."""
    free = [iter(names) for names in kinds]
    groups = [
        Group(tuple(next(free[group.kind]) for _ in group.devices), group.kind)
        for group in pipe.groups
    ]
    return pipe._replace(groups=tuple(groups))
