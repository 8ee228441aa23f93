"""Bounds of what the front of a model takes on islands that are left."""

from __future__ import annotations

import math

import numpy as np

from heterps_agents.systems.tangram.kernels import END, FILL, SHARE, STEADY, least_covers
from heterps_agents.systems.tangram.partial_plans import Islands, PartialPlans
from heterps_envs.arrays import Floats, Integers

# From one level of `steady` to the next, and how many there are below the last, which has no limit.
_LEVEL_STEP, _NUM_LEVELS = 1.04, 50
# Sums in another order differ by less.
ROUNDING = 1 + 1e-9


class Bounds:
    """What the layers in front of a cut take at least.

    If `steady` is no more than a level, then `fill` is at least the least sum over slices, an
    island each, whose plans keep to that level; and either `steady` is more than the level below,
    or that one's sum holds, too. So the least of both together, over all levels, is a bound. `end`
    is the least for itself. A slice counts the quickest message to an island behind it.

    Args:
        islands: What there is.
        plans: Of every slice and island.
    """

    def __init__(self, islands: Islands, plans: PartialPlans) -> None:
        num_islands, num_cuts = islands.kernel.num_classes, len(islands.cuts)
        self.plans, self.shape = plans, (num_islands, num_cuts, num_cuts)
        message_s, transfer_s = _quickest_messages(islands, plans)
        share = plans.costs[:, SHARE]
        self.fill_s = plans.costs[:, FILL] + 2 * message_s
        self.steady_s = np.maximum(plans.costs[:, STEADY], (share - 1) * transfer_s)
        self.least_end_s = self._covered(plans.costs[:, END], is_sum=False)
        least_s = self._covered(self.steady_s, is_sum=False)[-1, -1]
        levels = least_s * np.geomspace(1.0, _LEVEL_STEP**_NUM_LEVELS, _NUM_LEVELS + 1)
        self.levels = np.concatenate([[0.0], levels, [math.inf]])
        self.least_fill_s = np.stack(
            [self._covered(self.fill_s, is_sum=True, level=level) for level in self.levels[1:]]
        )
        # Of each level and all above it, the least of both together.
        both_s = self.least_fill_s + self.levels[:-1, None, None]
        above_s = np.minimum.accumulate(both_s[::-1], axis=0)[::-1]
        self.above_s = np.concatenate([above_s, np.full((1, *both_s.shape[1:]), math.inf)])

    def _covered(self, values: Floats, is_sum: bool, level: float = math.inf) -> Floats:
        """(2^T, G + 1) see `least_covers`; by plans whose `steady` is no more than a level."""
        plans, keeps = self.plans, self.steady_s <= level * ROUNDING
        at = plans.island[keeps], plans.first_cut[keeps], plans.end_cut[keeps]
        slices, least = np.full(self.shape, math.inf), np.empty((2 ** self.shape[0], self.shape[1]))
        np.minimum.at(slices, at, values[keeps])
        least_covers(slices, is_sum, least)
        return least

    def of_left(self, left: int) -> tuple[Floats, Floats, Floats, Floats]:
        """What `kernels.join` asks of the islands that are left, a bit for each."""
        return (
            self.levels[:-1],
            np.ascontiguousarray(self.least_fill_s[:, left]),
            np.ascontiguousarray(self.above_s[:, left]),
            self.least_end_s[left],
        )

    def step_s(self, left: int, cut: Integers, costs: Floats) -> Floats:
        """(N,) no step takes less.

        Args:
            left: Islands that are left, a bit for each.
            cut: (N,) index of the cut in front of what is built.
            costs: (N, 3 or more) of what is built: fill, steady, end.
        """
        steady_s = costs[:, STEADY]
        level = np.searchsorted(self.levels[:-1], steady_s, side="right") - 1
        # What is built sets the level, or what is left is slower than that.
        as_built_s = self.least_fill_s[level, left, cut] + steady_s
        both_s = np.minimum(as_built_s, self.above_s[level + 1, left, cut])
        end_s = np.maximum(self.least_end_s[left, cut], costs[:, END])
        return np.asarray(both_s + costs[:, FILL] + end_s)


def _quickest_messages(islands: Islands, plans: PartialPlans) -> tuple[Floats, Floats]:
    """(N,), (N,) from a plan's island to another one, and bytes alone; 0 behind the last layer."""
    num_islands, last = islands.kernel.num_classes, len(islands.cuts) - 1
    # By the island in front and the cut.
    quickest = np.full((2, num_islands, last + 1), math.inf)
    for front in range(num_islands):
        for behind in range(num_islands):
            if front != behind:
                latency_s, transfer_s = islands.link(front, behind)
                both = np.stack([latency_s + transfer_s, transfer_s])
                quickest[:, front] = np.minimum(quickest[:, front], both)
    # A single island sends nothing: it has all layers.
    quickest[:, :, last] = 0.0
    quickest[np.isinf(quickest)] = 0.0
    message_s, transfer_s = quickest[:, plans.island, plans.end_cut]
    return message_s, transfer_s
