"""A micro-batch size and number of replicas, and the numbers of GPUs worth using with it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.systems.sailor.goal import Room, SailorGoal
from heterps_agents.systems.sailor.options import Options
from heterps_agents.systems.sailor.ranges import Ranges, ranges_of
from heterps_configs.importers.sailor import SailorLinks, SailorModel
from heterps_envs.arrays import Floats, Integers

# States of one sweep (GPUs used, layers, options, stages) that are taken on: about 1 GB.
MAX_STATES = 300_000_000


class Counts(NamedTuple):
    """Numbers of GPUs that one replica may use; S of them.

    Attributes:
        used: (S, types) every combination, the first type's number changing fastest.
        usd_per_s: (S,) price of these GPUs of all replicas.
        may_grow: (S,) whether it is worth using, or more GPUs make it so.
        least_usd_per_s: Of those worth using.
        bound: What is minimised is no less for any of them.
    """

    used: Integers
    usd_per_s: Floats
    may_grow: NDArray[np.bool_]
    least_usd_per_s: float
    bound: float


@dataclass(frozen=True)
class Candidate:
    """Pipelines of two stages or more with one micro-batch size and number of replicas.

    Attributes:
        rounds: Micro-batches of a replica, less one.
        known_ranges: Of its layers; None: not looked up yet.
    """

    options: Options
    replicas: int
    rounds: int
    known_ranges: Ranges | None = None

    def with_ranges(self, model: SailorModel, links: SailorLinks) -> Candidate:
        """The same with what ranges of layers take, which makes its bounds better."""
        found = ranges_of(model, links, self.options, self.replicas)
        return Candidate(self.options, self.replicas, self.rounds, found)

    @property
    def ranges(self) -> Ranges:
        """What ranges of layers take."""
        assert self.known_ranges is not None, "looked up before a search"
        return self.known_ranges

    @cached_property
    def bound_s(self) -> float:
        """Seconds that no pipeline stays below."""
        return float(self._least_s(self.options.gpus_per_replica(self.replicas)))

    def bound(self, goal: SailorGoal) -> float:
        """Of every pipeline, what is minimised at least; inf: none keeps the floor."""
        if self.bound_s > goal.most_s:
            return math.inf
        if not goal.is_by_usd:
            return self.bound_s
        # No GPU is paid for less time than it computes.
        load_s = (self.rounds + 1) * float(self.options.load[-1])
        return self.replicas * load_s * self.options.least_usd_per_load

    def counts(self, goal: SailorGoal, room: Room) -> Counts | None:
        """Numbers of GPUs that leave room, from what a pipeline on them takes at least.

        Where there are too many to tell apart, GPUs of types stay idle that are many for what they
        are worth.
        """
        used = _combinations(self._fewer(goal, self._payable(room)))
        seconds = self._least_s(used)
        usd_per_s = np.asarray(used @ self.options.usd_per_s * self.replicas, np.float64)
        usd = seconds * usd_per_s
        is_worth = used.any(axis=1) & (seconds < room.most_s) & (usd < room.most_usd)
        if not is_worth.any():
            return None
        most = used[is_worth].max(axis=0)
        kept = (used <= most).all(axis=1)
        return Counts(
            used[kept],
            usd_per_s[kept],
            _at_or_below(is_worth[kept], most),
            float(usd_per_s[is_worth].min()),
            float((usd if goal.is_by_usd else seconds)[is_worth].min()),
        )

    def leaves_out(self, goal: SailorGoal, room: Room) -> bool:
        """Whether there are more numbers of GPUs than `counts` looks at."""
        payable = self._payable(room)
        return bool((self._fewer(goal, payable) < payable).any())

    def _payable(self, room: Room) -> Integers:
        """(types,) GPUs of one replica that are there and can be paid."""
        most, usd_per_s = self.options.gpus_per_replica(self.replicas), self.options.usd_per_s
        if math.isinf(room.most_usd):
            return most
        paid = room.most_usd / (self.replicas * usd_per_s * self.bound_s)
        return np.asarray(np.minimum(most, np.minimum(paid, most.max())), np.int64)

    def _fewer(self, goal: SailorGoal, most: Integers) -> Integers:
        """As many of them as a sweep has states for."""
        num_options, width = self.options.compute_s.shape
        worth = self.options.speed
        worth = worth / self.options.usd_per_s if goal.is_by_usd else worth
        fewer = most.copy()
        while True:
            stages = min(width - 1, int(fewer.sum())) + 1
            pipelines = math.prod(float(count) + 1 for count in fewer)
            if pipelines * width * num_options**2 * stages <= MAX_STATES:
                return fewer
            fewer[(fewer / worth).argmax()] *= 0.9

    def _least_s(self, counts: Integers) -> Floats:
        rest_s = float(self.options.least_s[-1])
        if self.known_ranges is not None:
            rest_s += sum(self.known_ranges.least_s)
        return self.rounds * self.options.least_bottleneck_s(counts) + rest_s


def _combinations(most: Integers) -> Integers:
    """(S, types) all numbers from 0 to the most of each type, the first changing fastest."""
    grid = np.indices(tuple(most[::-1] + 1)).reshape(len(most), -1)
    return np.ascontiguousarray(grid[::-1].T)


def _at_or_below(marked: NDArray[np.bool_], most: Integers) -> NDArray[np.bool_]:
    """Whether a marked combination has at least as many GPUs of every type."""
    grid = marked.reshape(tuple(most[::-1] + 1))
    for axis in range(grid.ndim):
        grid = np.flip(np.logical_or.accumulate(np.flip(grid, axis), axis=axis), axis)
    return grid.reshape(-1)
