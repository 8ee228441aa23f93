"""The learned search for the least price times step time.

First the shortest step. Then a policy that knows prices has beams under price limits, for steps of
every length; for another one there is a beam for each set of device classes.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from heterps_agents.learned.beam import Aims
from heterps_agents.learned.best_placements import BestPlacements
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.shortest_step import ShortestStep
from heterps_agents.search.class_subsets import class_subsets, options_on, renamed, restricted
from heterps_configs.documents.effort import Effort
from heterps_envs.arrays import Code, Floats
from heterps_envs.closed_form.bounds import price_bound
from heterps_envs.closed_form.objective import ROUNDING, STEP_TIME
from heterps_envs.environments.stage.packed import pack_problems

# Up to how many times the fastest known step.
SLOWEST = 32.0
# Under price limits: what costs so many times the best is still looked at, for its descent.
PRICE_SLACK = 1.05
# Bottlenecks between so much of a target and the target are looked for.
PRICE_EARLY = 0.9
# Steps of the first round: each so many times as long as the next shorter one. Fill of the
# placements looked for, over that of the fastest.
STEP_RATIO, FILLS = 1.2, (0.4, 1.3)
# The same of the rounds around the best placement; shares of the bottleneck over the best one's.
AROUND, AROUND_RATIO, SHARES_AROUND = (0.95, 1.1, 1.3), 1.1, (0.85, 1.05)


class PriceLadder(NamedTuple):
    """What a round of beams under price limits looks for.

    Attributes:
        steps_s: (S,) longest steps, seconds.
        shares: (B,) of the step that is the bottleneck.
        ratio: A step is so many times as long as the next shorter one that is looked for.
    """

    steps_s: Floats
    shares: Floats
    ratio: float


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
        self.polish()

    def _fastest(self, effort: Effort, start: Code | None) -> ShortestStep:
        """The search for the least step time, from what is known."""
        fast = ShortestStep(
            self.scorer, self.question._replace(goal=STEP_TIME, problem=None), effort
        )
        fast.know(start)
        fast.find()
        return fast

    def _priced_rounds(self, fast: ShortestStep, slowest_s: float) -> None:
        """Beams under price limits: for steps of every length, then around the best placement."""
        effort, least_price = self.effort, float(self.kernel.price_usd_per_hour.min())
        if least_price > 0:
            slowest_s = min(slowest_s, self.known_s / least_price)
        shortest_s, (_, share) = min(fast.known_s, slowest_s), fast.step_and_share()
        if shortest_s <= 0:  # nothing takes any time, and so nothing costs more
            return
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
            names = np.array(options_on(self.tables, subset), np.int32)
            found.code[index] = renamed(found.code[index], names)
        codes = found.code.reshape(-1, found.code.shape[2])
        self.descend(found.step_time_s.ravel(), codes, effort.descents)


def first_ladder(
    shortest_s: float, slowest_s: float, share: float, most_steps: int, num_shares: int
) -> PriceLadder:
    """Steps of every length.

    Args:
        shortest_s: The fastest known step.
        slowest_s: The slowest that is worth it.
        share: Of the fastest step that is its bottleneck.
        most_steps: Lengths at most.
        num_shares: Shares for each.
    """
    count = math.ceil(math.log(slowest_s / shortest_s) / math.log(STEP_RATIO))
    count = min(max(count, 1), most_steps)
    ratio = max((slowest_s / shortest_s) ** (1 / count), STEP_RATIO)
    # Cheaper placements have fewer stages, so less of the step is fill.
    shares = 1 - (1 - share) * np.geomspace(*FILLS, num_shares)
    return PriceLadder(slowest_s / ratio ** np.arange(count), shares, ratio)


def ladder_around(
    step_time_s: float, share: float, slowest_s: float, num_shares: int
) -> PriceLadder:
    """Steps about as long as that of the best placement, of which `share` is the bottleneck."""
    steps_s = np.unique(np.minimum(step_time_s * np.array(AROUND), slowest_s))
    return PriceLadder(steps_s, share * np.geomspace(*SHARES_AROUND, num_shares), AROUND_RATIO)
