"""The learned search for the shortest step.

a coarse ladder of targets, narrow beams          where good placements are
rounds of targets around the best, wide beams     better ones, with other stages
after each                                        what `best_placements` does with them
in the end                                        a cool annealing from the best
"""

from __future__ import annotations

import math

import numpy as np

from heterps_agents.learned.beam import Aims
from heterps_agents.learned.best_placements import BestPlacements
from heterps_agents.learned.efforts import effort_named
from heterps_agents.search.cross_entropy import cross_entropy_code
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.refine import admit
from heterps_configs.documents.effort import Effort

# A placement that takes so much longer than the best is still kept for its descent.
SLACK = 1.03
# Targets of the first ladder end at this multiple of the lower bound where nothing is known; those
# of the rounds lie around the bottleneck of the best placement.
LARGEST_TARGET, AROUND = 32.0, (0.7, 1.1)
# Where no beam finds a placement, and greedy neither.
RESCUE_EVALUATIONS = 5000
# A model may take no time at all; targets are ratios of each other.
LEAST_TARGET_S = 1e-15


class ShortestStep(BestPlacements):
    """The search for the least step time."""

    def find(self) -> None:
        """Looks until the effort or the budget is spent."""
        if self.effort.begins_with is None:
            self._first_ladder()
        else:
            self._begin_with(effort_named(self.effort.begins_with))
        self.windows()
        for _ in range(self.effort.rounds):
            if self.is_proven:
                return
            before = self.cost
            self._ladder(*self._targets_around(), self.effort.width, self.effort.targets)
            self.windows()
            if not self.cost < before:
                break
        self.polish()

    def _first_ladder(self) -> None:
        """Narrow beams for targets of every size; without success, whatever finds a placement."""
        low, high = self._all_targets()
        self._ladder(low, high, self.effort.first_width, self.effort.first_targets)
        if math.isinf(self.known_s):
            self._ladder(high, LARGEST_TARGET * high, self.effort.width, self.effort.targets)
        if math.isinf(self.known_s):
            self.know(greedy_code(self.question))
        if math.isinf(self.known_s) and self.can_spend(1):
            budget = self.budget.part(min(self.left, RESCUE_EVALUATIONS))
            self.know(cross_entropy_code(self.question._replace(budget=budget, seed=0, start=None)))
            self.budget.spend(budget.evaluations_used)

    def _begin_with(self, effort: Effort) -> None:
        """All that a smaller effort does; its best placements are where this one goes on."""
        effort = effort.changed(sweeps=self.effort.sweeps)
        smaller = ShortestStep(self.scorer, self.question, effort)
        smaller.by_options = self.by_options
        smaller.know(self.code)
        smaller.find()
        self.is_proven, found = smaller.is_proven, smaller.elite
        for stages, count, cost in zip(found.stages, found.num_stages, found.cost, strict=True):
            if count > 0:
                admit(self.elite, stages, count, cost, False)

    def _all_targets(self) -> tuple[float, float]:
        """Targets below which no placement is, and above which none is worth it."""
        problems, lower_s = self.problems, float(self.problems.lower_bound_s[0])
        least_fill_s = float(problems.fastest_prefix_s[0, -1])
        low = max(lower_s - 2 * least_fill_s, float(problems.least_target_s[0]))
        high = LARGEST_TARGET * lower_s if math.isinf(self.known_s) else self.known_s
        return low, max(high, 1.01 * low)

    def _targets_around(self) -> tuple[float, float]:
        if math.isinf(self.known_s):
            return self._all_targets()
        bottleneck_s = self.cost - self.fill_s()
        return AROUND[0] * bottleneck_s, AROUND[1] * bottleneck_s

    def _ladder(self, low: float, high: float, width: int, count: int) -> None:
        """One beam for each target from `low` to `high`, and the descent of the best placements."""
        if not self.can_spend(width * count):
            return
        low = max(low, LEAST_TARGET_S)
        targets = np.geomspace(low, max(low, high), count)
        # Bottlenecks between a target and the next smaller one are looked for.
        below = np.concatenate([[low * low / targets[1]], targets[:-1]])
        limits = self.known_s * SLACK - below
        aims = Aims(targets[None], limits[None], np.array([self.known_s]))
        found = self.beams(self.problems, aims, width, SLACK)
        self.descend(found.step_time_s[0], found.code[0], self.effort.descents)
