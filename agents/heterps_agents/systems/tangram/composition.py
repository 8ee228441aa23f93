"""The best pipeline of partial plans: one slice for each of some islands, in the best order.

A step of a pipeline takes

    sum over plans of fill + 2 sum over cuts of message + max of steady + max of end

`fill` is a micro-batch's way there and back, `steady` what the slowest stage or link takes for all
other micro-batches of its busiest replica, `end` the longest sum of gradients and optimizer step.

A dynamic programme puts plans in front of what is built, from the back. What is built is known by
the islands that it uses, the one in front, and the cut in front; of such, only those stay that no
other one is at least as good as, in fill, steady, end and groups used (the more groups are behind a
stage, the more micro-batches it holds). What cannot end within a limit is dropped, by bounds of
what the rest takes. The limit is what a first round finds that keeps but a few with the same
islands; the second round keeps all, so that it finds the optimum.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.systems.tangram.bounds import ROUNDING, Bounds
from heterps_agents.systems.tangram.kernels import END, FILL, GROUPS, STEADY, join
from heterps_agents.systems.tangram.partial_plans import Islands, PartialPlans, undominated
from heterps_envs.arrays import Floats, Integers

# What the first round keeps with the same islands and the same one in front.
_FEW = 50


class Pipeline(NamedTuple):
    """Partial plans from the front, by their indices, and the seconds of a step."""

    plans: tuple[int, ...]
    step_time_s: float


class _Built(NamedTuple):
    """N pipelines of the back of the model with the same islands, one of them in front.

    Attributes:
        cut: (N,) index of the cut in front.
        costs: (N, 4) fill, steady, end, groups.
        plan: (N,) the partial plan in front.
        behind: (N,) island in front of what is behind that; -1: nothing.
        behind_at: (N,) and its place among those.
    """

    cut: Integers
    costs: Floats
    plan: Integers
    behind: Integers
    behind_at: Integers

    def some(self, which: NDArray[np.bool_]) -> _Built:
        """Some of them."""
        behind = self.behind[which], self.behind_at[which]
        return _Built(self.cut[which], self.costs[which], self.plan[which], *behind)


def _together(parts: Sequence[_Built]) -> _Built:
    return _Built(
        np.concatenate([part.cut for part in parts]),
        np.concatenate([part.costs for part in parts]),
        np.concatenate([part.plan for part in parts]),
        np.concatenate([part.behind for part in parts]),
        np.concatenate([part.behind_at for part in parts]),
    )


def best_pipeline(
    islands: Islands, plans: PartialPlans, should_stop: Callable[[], bool] = lambda: False
) -> Pipeline | None:
    """The composition of least seconds; None where none has memory.

    Args:
        islands: What there is.
        plans: Of every slice and island.
        should_stop: Asked now and then; once it is true, the best of a first look is the answer.
    """
    composer = _Composer(islands, plans)
    first = composer.within(math.inf, _FEW)
    limit_s = math.inf if first is None else first.step_time_s * ROUNDING
    return composer.within(limit_s, should_stop=should_stop) or first


class _Composer:
    def __init__(self, islands: Islands, plans: PartialPlans) -> None:
        self.islands, self.plans = islands, plans
        self.num_islands, self.last = islands.kernel.num_classes, len(islands.cuts) - 1
        self.everything = 2**self.num_islands - 1
        self.bounds = Bounds(islands, plans)
        self.twin_in_front = [self._first_twin(island) for island in range(self.num_islands)]

    def _first_twin(self, island: int) -> int:
        """An equal island with a smaller index, which is taken first; -1: there is none."""
        return next((other for other in range(island) if self._are_twins(other, island)), -1)

    def _are_twins(self, one: int, two: int) -> bool:
        plans, islands = self.plans, self.islands
        first, second = (plans.island == each for each in (one, two))
        for column in (plans.costs, plans.first_cut, plans.end_cut):
            if not np.array_equal(column[first], column[second]):
                return False
        swapped = np.arange(self.num_islands)
        swapped[[one, two]] = two, one
        links = islands.latency_s, islands.inverse_bandwidth
        return all(np.array_equal(link, link[np.ix_(swapped, swapped)]) for link in links)

    def within(
        self,
        limit_s: float,
        most: int | None = None,
        should_stop: Callable[[], bool] = lambda: False,
    ) -> Pipeline | None:
        """The best pipeline, if it takes less than a limit.

        Args:
            limit_s: Of a step.
            most: What is kept with the same islands and the same one in front; None: all.
            should_stop: Ends the search without an answer.
        """
        built: dict[tuple[int, int], _Built] = {}
        best_s, best = limit_s, None
        for used in range(1, self.everything + 1):
            for island in range(self.num_islands):
                twin = self.twin_in_front[island]
                if not used >> island & 1 or (twin >= 0 and not used >> twin & 1):
                    continue
                if should_stop():
                    return None
                found = self._with_front(built, used, island, best_s, most)
                if found is None:
                    continue
                built[used, island] = found
                whole = np.flatnonzero(found.cut == 0)
                step_s = found.costs[whole][:, [FILL, STEADY, END]].sum(axis=1)
                if len(whole) and step_s.min() < best_s:
                    best_s = float(step_s.min())
                    best = used, island, int(whole[step_s.argmin()])
        if best is None:
            return None
        return Pipeline(self._traced(built, *best), best_s)

    def _with_front(
        self,
        built: dict[tuple[int, int], _Built],
        used: int,
        island: int,
        limit_s: float,
        most: int | None,
    ) -> _Built | None:
        """Pipelines with some islands, one of them in front, that may end within a limit."""
        behind, left = used ^ (1 << island), self.everything ^ used
        parts = [
            self._joined(built[behind, other], other, island, left, limit_s)
            for other in range(self.num_islands)
            if (behind, other) in built
        ]
        if not behind:
            parts.append(self._last_plans(island, left, limit_s))
        if not parts:
            return None
        found = _together([part for part, _ in parts])
        least_s = np.concatenate([part_s for _, part_s in parts])
        if most is not None and len(least_s) > most:
            found = found.some(least_s <= np.partition(least_s, most)[most])
        found = found.some(undominated(found.costs, found.cut))
        return found if len(found.cut) else None

    def _last_plans(self, island: int, left: int, limit_s: float) -> tuple[_Built, Floats]:
        """Those of the slices at the end of the model, and what a step takes at least."""
        begin, end = self.plans.offsets[island][[self.last, self.last + 1]]
        own = np.arange(begin, end)
        nothing = np.full(len(own), -1)
        costs = self.plans.costs[own][:, [FILL, STEADY, END, GROUPS]]
        found = _Built(self.plans.first_cut[own], costs, own, nothing, nothing)
        least_s = self.bounds.step_s(left, found.cut, found.costs)
        keeps = least_s < limit_s
        return found.some(keeps), least_s[keeps]

    def _joined(
        self, built: _Built, behind: int, island: int, left: int, limit_s: float
    ) -> tuple[_Built, Floats]:
        """All plans of an island in front of what is built, where they have memory; and as above.

        Those that may end within the limit.
        """
        plans, offsets = self.plans, self.plans.offsets[island]
        most = int((offsets[built.cut + 1] - offsets[built.cut]).sum())
        found, costs = np.empty((most, 3), np.int64), np.empty((most, 5))
        count = join(
            (offsets, plans.first_cut, plans.costs),
            (built.cut, built.costs),
            self.islands.link(island, behind),
            self.bounds.of_left(left),
            limit_s,
            found,
            costs,
        )
        found, costs = found[:count], costs[:count]
        cut, plan, at = found.T
        nearer = np.ascontiguousarray(costs[:, :4])
        return _Built(cut, nearer, plan, np.full(count, behind), at), costs[:, 4]

    def _traced(
        self, built: dict[tuple[int, int], _Built], used: int, island: int, at: int
    ) -> tuple[int, ...]:
        """The partial plans of a pipeline, from the front."""
        found = []
        while island >= 0:
            own = built[used, island]
            found.append(int(own.plan[at]))
            used ^= 1 << island
            island, at = int(own.behind[at]), int(own.behind_at[at])
        return tuple(found)
