"""The best pipeline of partial plans: one slice for each of some islands, in the best order.

A step of a pipeline takes

    sum over plans of fill + 2 sum over cuts of message + max of steady + max of end

`fill` is a micro-batch's way there and back, `steady` what the slowest stage or link takes for all
other micro-batches of its busiest replica, `end` the longest sum of gradients and optimizer step.

A dynamic programme puts plans in front of what is built, from the back. What is built is known by
the islands that it uses, the one in front, and the cut in front; of such, only those stay that no
other one is at least as good as, in fill, steady, end and groups used (the more groups are behind a
stage, the more micro-batches it holds). What cannot end within a limit is dropped: the rest of the
model takes at least the smallest fill and the smallest steady of all slices of the islands left,
each for itself. The limit begins close to what the whole model takes at least, and grows until
something is found: that is the optimum.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.tangram.kernels import END, FILL, GROUPS, ROOM, SHARE, STEADY
from heterps_agents.systems.tangram.partial_plans import Islands, PartialPlans, undominated
from heterps_envs.arrays import Floats, Integers

# Times the least that a step can take.
_LIMITS = (1.02, 1.05, 1.1, 1.2, 1.4, 2.0, 4.0, math.inf)
# Sums in another order differ by less.
_ROUNDING = 1 + 1e-9


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


def best_pipeline(islands: Islands, plans: PartialPlans) -> Pipeline | None:
    """The composition of least seconds; None where none has memory.

    Args:
        islands: What there is.
        plans: Of every slice and island.
    """
    composer = _Composer(islands, plans)
    least_s = composer.least_s
    for factor in _LIMITS if math.isfinite(least_s) else ():
        found = composer.within(factor * least_s)
        if found is not None:
            return found
    return None


class _Composer:
    def __init__(self, islands: Islands, plans: PartialPlans) -> None:
        self.islands, self.plans = islands, plans
        self.num_islands, self.last = islands.kernel.num_classes, len(islands.cuts) - 1
        self.everything = 2**self.num_islands - 1
        # (2^T, G + 1) of the layers in front of a cut on some islands.
        self.least_fill_s = self._least(FILL, np.add)
        self.least_steady_s = self._least(STEADY, np.maximum)
        self.twin_in_front = [self._first_twin(island) for island in range(self.num_islands)]

    @property
    def least_s(self) -> float:
        """No step takes less."""
        everything = self.everything, self.last
        return float(self.least_fill_s[everything] + self.least_steady_s[everything])

    def _least(self, cost: int, joined: np.ufunc) -> Floats:
        """The least sum, or maximum, over slices that cover the layers in front of each cut."""
        best = np.full((self.num_islands, self.last + 1, self.last + 1), math.inf)
        for island in range(self.num_islands):
            own = slice(self.plans.offsets[island][0], self.plans.offsets[island][-1])
            at = self.plans.first_cut[own], self.plans.end_cut[own]
            np.minimum.at(best[island], at, self.plans.costs[own, cost])
        least = np.full((2**self.num_islands, self.last + 1), math.inf)
        least[:, 0] = 0.0
        for used in range(1, 2**self.num_islands):
            for island in range(self.num_islands):
                if used >> island & 1:
                    front = least[used ^ (1 << island)]
                    with_it = joined(front[:, None], best[island]).min(axis=0)
                    least[used] = np.minimum(least[used], with_it)
        return least

    def _first_twin(self, island: int) -> int:
        """An equal island with a smaller index, which is taken first; -1: there is none."""
        return next((other for other in range(island) if self._are_twins(other, island)), -1)

    def _are_twins(self, one: int, two: int) -> bool:
        plans, islands = self.plans, self.islands
        parts = [slice(plans.offsets[each][0], plans.offsets[each][-1]) for each in (one, two)]
        if not np.array_equal(*(plans.costs[part] for part in parts)):
            return False
        if any(not np.array_equal(*(column[part] for part in parts)) for column in plans[:2]):
            return False
        swapped = np.arange(self.num_islands)
        swapped[[one, two]] = two, one
        links = islands.latency_s, islands.inverse_bandwidth
        return all(np.array_equal(link, link[np.ix_(swapped, swapped)]) for link in links)

    def within(self, limit_s: float) -> Pipeline | None:
        """The best pipeline, if it takes no longer than a limit."""
        built: dict[tuple[int, int], _Built] = {}
        best_s, best = limit_s * _ROUNDING, None
        for used in range(1, self.everything + 1):
            for island in range(self.num_islands):
                twin = self.twin_in_front[island]
                if not used >> island & 1 or (twin >= 0 and not used >> twin & 1):
                    continue
                found = self._with_front(built, used, island, best_s)
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
        self, built: dict[tuple[int, int], _Built], used: int, island: int, limit_s: float
    ) -> _Built | None:
        """Pipelines with some islands, one of them in front, that may end within a limit."""
        behind = used ^ (1 << island)
        parts = [
            self._joined(built[behind, other], other, island)
            for other in range(self.num_islands)
            if (behind, other) in built
        ]
        if not behind:
            parts.append(self._last_plans(island))
        if not parts:
            return None
        found = _Built(*(np.concatenate(column) for column in zip(*parts, strict=True)))
        left = self.everything ^ used
        fill_s = found.costs[:, FILL] + self.least_fill_s[left, found.cut]
        steady_s = np.maximum(found.costs[:, STEADY], self.least_steady_s[left, found.cut])
        may_end = fill_s + steady_s + found.costs[:, END] < limit_s
        found = _Built(*(column[may_end] for column in found))
        keeps = undominated(found.costs, found.cut)
        return _Built(*(column[keeps] for column in found)) if keeps.any() else None

    def _last_plans(self, island: int) -> _Built:
        """Those of the slices at the end of the model."""
        begin, end = self.plans.offsets[island][[self.last, self.last + 1]]
        own = np.arange(begin, end)
        nothing = np.full(len(own), -1)
        costs = self.plans.costs[own][:, [FILL, STEADY, END, GROUPS]]
        return _Built(self.plans.first_cut[own], costs, own, nothing, nothing)

    def _joined(self, built: _Built, behind: int, island: int) -> _Built:
        """All plans of an island in front of what is built, where they have memory."""
        offsets = self.plans.offsets[island]
        begins, ends = offsets[built.cut], offsets[built.cut + 1]
        counts = ends - begins
        at = np.repeat(np.arange(len(built.cut)), counts)
        plan = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts) + begins[at]
        front, back = self.plans.costs[plan], built.costs[at]
        fits = back[:, _GROUPS] <= -front[:, ROOM]
        at, plan, front, back = at[fits], plan[fits], front[fits], back[fits]
        num_bytes = self.islands.kernel.output_bytes[self.islands.cuts[built.cut[at]] - 1]
        transfer_s = num_bytes * self.islands.inverse_bandwidth[island, behind]
        message_s = self.islands.latency_s[island, behind] + transfer_s
        costs = np.stack(
            [
                front[:, FILL] + back[:, FILL] + 2 * message_s,
                np.maximum(
                    np.maximum(front[:, STEADY], back[:, STEADY]),
                    (front[:, SHARE] - 1) * transfer_s,
                ),
                np.maximum(front[:, END], back[:, END]),
                front[:, GROUPS] + back[:, _GROUPS],
            ],
            axis=1,
        )
        return _Built(self.plans.first_cut[plan], costs, plan, np.full(len(at), behind), at)

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


# The column of the groups among the costs of what is built; the others stand as in those of plans.
_GROUPS = 3
