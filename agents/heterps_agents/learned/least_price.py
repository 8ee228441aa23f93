"""The learned search for the least price times step time.

First the shortest step. Then a policy that knows prices has beams under price limits, for steps of
every length; for another one there is a beam for each set of device classes.
"""

from __future__ import annotations

import math

import numpy as np

from heterps_agents.learned.beam import Aims
from heterps_agents.learned.best_placements import BestPlacements
from heterps_agents.learned.class_subsets import class_subsets, renamed, restricted
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.price_ladder import PriceLadder, first_ladder, ladder_around
from heterps_agents.learned.shortest_step import ShortestStep
from heterps_configs.documents.effort import Effort
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import price_bound
from heterps_envs.closed_form.objective import ROUNDING, STEP_TIME
from heterps_envs.environments.stage.packed import pack_problems

# Up to how many times the fastest known step.
SLOWEST = 32.0
# Under price limits: what costs so many times the best is still looked at, for its descent.
PRICE_SLACK = 1.05
# Bottlenecks between so much of a target and the target are looked for.
PRICE_EARLY = 0.9


class LeastPrice(BestPlacements):
    """The search for few and cheap devices, as slow as is worth it."""

    def find(self) -> None:
        """Looks until the effort or the budget is spent."""
        quick = self.effort.changed(rounds=0, begins_with=None)
        fast = self._fastest(quick, self.code)
        if fast.known_s > self.goal.floor_s:
            fast = self._fastest(self.effort, fast.code)
        if fast.code is not None:
            self.descend(np.zeros(1), fast.code[None], 1)
        knows_prices = isinstance(self.scorer, Policy) and self.scorer.knows_prices
        if math.isfinite(fast.known_s):
            slowest_s = min(self.goal.floor_s, SLOWEST * fast.known_s)
            if knows_prices:
                self._priced_rounds(fast, slowest_s)
            else:
                self._cheap_beams(slowest_s)
        self.windows()

    def _fastest(self, effort: Effort, start: Code | None) -> ShortestStep:
        """The search for the least step time, from what is known."""
        fast = ShortestStep(self.scorer, self.question._replace(goal=STEP_TIME), effort)
        fast.know(start)
        fast.find()
        return fast

    def _priced_rounds(self, fast: ShortestStep, slowest_s: float) -> None:
        """Beams under price limits: for steps of every length, then around the best placement."""
        effort, least_price = self.effort, float(self.kernel.price_usd_per_hour.min())
        if least_price > 0:
            slowest_s = min(slowest_s, self.known_s / least_price)
        shortest_s, (_, share) = min(fast.known_s, slowest_s), fast.step_and_share()
        ladder = first_ladder(
            shortest_s, slowest_s, share, effort.price_targets, effort.price_shares
        )
        self._priced_beams(ladder, effort.price_width)
        for _ in range(effort.price_rounds):
            before = self.cost
            self.windows()
            if math.isinf(self.known_s):
                return
            ladder = ladder_around(*self.step_and_share(), slowest_s, effort.price_shares)
            self._priced_beams(ladder, effort.price_width)
            if not self.cost < before:
                return

    def _priced_beams(self, ladder: PriceLadder, width: int) -> None:
        """One beam for each length of the step and share of it that is the bottleneck.

        What costs more per hour than its limit is no better than what is known, whatever its step.

        Args:
            ladder: The lengths and shares.
            width: Of the beams.
        """
        steps_s, shares, ratio = ladder
        if not self.can_spend(width * len(steps_s) * len(shares)):
            return
        targets = steps_s[:, None] * np.clip(shares, 0.05, 0.99)
        fill_limits = steps_s[:, None] - targets * PRICE_EARLY
        price_limits = np.broadcast_to(
            (PRICE_SLACK * ratio * self.known_s / steps_s)[:, None], targets.shape
        )
        slowest = np.array([steps_s.max() * (1 + ROUNDING)])
        aims = Aims(
            targets.reshape(1, -1), fill_limits.reshape(1, -1), slowest, price_limits.reshape(1, -1)
        )
        found = self.beams(self.problems, aims, width)
        self.descend(found.step_time_s[0], found.code[0], self.effort.descents)

    def _cheap_beams(self, slowest_s: float) -> None:
        """One beam for each set of classes and target, and the descent of the cheapest."""
        effort = self.effort
        subsets = [
            subset
            for subset in class_subsets(self.tables)
            if math.isfinite(price_bound(restricted(self.tables, subset))[0])
        ]
        charge = len(subsets) * effort.price_targets * effort.price_width
        if not subsets or not self.can_spend(charge):
            return
        packed = pack_problems([restricted(self.tables, subset) for subset in subsets])
        targets = np.geomspace(
            np.minimum(packed.least_target_s, slowest_s), slowest_s, effort.price_targets, axis=1
        )
        no_limits, slowest = np.full(targets.shape, np.inf), np.full(len(subsets), slowest_s)
        found = self.beams(packed, Aims(targets, no_limits, slowest), effort.price_width)
        for index, subset in enumerate(subsets):
            found.code[index] = renamed(found.code[index], np.array(subset, np.int16))
        codes = found.code.reshape(-1, found.code.shape[2])
        self.descend(found.step_time_s.ravel(), codes, effort.descents)
