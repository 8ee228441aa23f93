"""The learned placer on one problem: what a policy finds, improved, until an effort is spent.

    a coarse ladder of targets, narrow beams          where good placements are
    rounds of targets around the best, wide beams     better ones, with other stages
    after each: the best few descend                  `heterps_agents.search.refine`
    then: windows of stages, chosen anew and exactly  `heterps_agents.learned.windows`
    a window of all stages                            `heterps_agents.exact.solve`: its answer is
    proven

The order of all this depends on the effort alone. A budget only ends it sooner, so that a larger
one never gives a worse placement; the best so far is what is returned. There is no randomness.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from heterps_agents.exact.solve import SECONDS_PER_TRANSITION, solve
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.learned.beam import Aims, Scorer, beam
from heterps_agents.learned.class_subsets import class_subsets, renamed, restricted
from heterps_agents.learned.efforts import effort_named
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.price_ladder import PriceLadder, first_ladder, ladder_around
from heterps_agents.learned.window_labels import labels_for
from heterps_agents.learned.windows import WindowProblem, improve_windows
from heterps_agents.search.cross_entropy import cross_entropy_code
from heterps_agents.search.greedy import greedy_code
from heterps_agents.search.refine import admit, descend_best, fill_s, no_elite
from heterps_configs.documents.effort import Effort
from heterps_envs.arrays import Code, Floats
from heterps_envs.closed_form.bounds import price_bound
from heterps_envs.closed_form.objective import (
    MISSES_FLOOR,
    ROUNDING,
    STEP_TIME,
    code_cost,
    code_of,
    read_stages,
    search_cost,
)
from heterps_envs.environments.stage.packed import pack_problems

# A placement that takes so much longer than the best is still kept for its descent.
SLACK = 1.03
# Placements that a beam hands over.
MOST_FOUND = 4
SMALL_WINDOW = 4
# Windows of such placements are chosen anew that cost at most so much more than the best one.
PROMISING = 1.1
# Targets of the first ladder end at this multiple of the lower bound where nothing is known; those
# of the rounds lie around the bottleneck of the best placement.
LARGEST_TARGET, AROUND = 32.0, (0.7, 1.1)
# For the objective price: up to how many times the fastest known step.
SLOWEST = 32.0
# Under price limits: what costs so many times the best is still looked at, for its descent.
PRICE_SLACK = 1.05
# Bottlenecks between so much of a target and the target are looked for.
PRICE_EARLY = 0.9
# Partial windows that are kept at most.
MOST_LABELS = 20_000
# Seconds, predicted and then counted in stages tried, for all stages at once.
SWEEP_S = 0.04
# Where no beam finds a placement, and greedy neither.
RESCUE_EVALUATIONS = 5000
_ENDLESS = 1 << 60


def learned_code(scorer: Scorer, question: Question, effort: Effort) -> Code | None:
    """Code of the best placement found.

    Args:
        scorer: The policy.
        question: Its budget is charged a beam's width for every target, one for every placement
            that is evaluated, and one for as many stages of windows as the placement has. What is
            returned is never worse than its start.
        effort: How much to do at most.

    Raises:
        HeterpsError: A layer fits on no device.
    """
    search = _Search(scorer, question, effort)
    search.know(question.start)
    if question.goal.is_price:
        search.find_cheap()
    else:
        search.find_fast()
    return search.code


class _Search:
    """The best placement so far, and the ways to better ones."""

    def __init__(self, scorer: Scorer, question: Question, effort: Effort) -> None:
        self.scorer, self.question, self.effort = scorer, question, effort
        self.tables, self.kernel, self.goal, self.budget, *_ = question
        self.problems = pack_problems([self.tables])
        self._elite = no_elite(effort.elite, self.kernel.num_layers)
        self._windowed = WindowProblem(
            self.kernel, self.goal, self.problems.class_price[0], self.problems.value_prefix_s[0]
        )
        self._labels = labels_for(MOST_LABELS, self.kernel.num_layers, self.kernel.num_classes)
        self._is_proven = self._is_swept = False

    @property
    def cost(self) -> float:
        """Of the best placement; inf where there is none."""
        return float(self._elite.cost[0])

    @property
    def code(self) -> Code | None:
        """(L,) int16 of the best placement; None where there is none."""
        count = self._elite.num_stages[0]
        return code_of(self._elite.stages[0], count) if count > 0 else None

    @property
    def _known_s(self) -> float:
        """Step time to beat; inf where no placement that fits is known."""
        return self.cost if self.cost < MISSES_FLOOR else math.inf

    @property
    def _left(self) -> int:
        left = self.budget.evaluations_left
        return _ENDLESS if left is None else left

    def know(self, code: Code | None) -> None:
        """Begins with a known placement, improved."""
        if code is None:
            return
        self._admit(code, False)
        self._descend(np.zeros(1), code[None], 1)

    def _admit(self, code: Code, is_done: bool) -> None:
        stages = np.empty((self.kernel.num_layers + 1, 3), np.int64)
        cost = code_cost(code, self.kernel, self.goal)
        admit(self._elite, stages, read_stages(code, stages), cost, is_done)

    def find_fast(self) -> None:
        """The least step time."""
        if self.effort.begins_with is None:
            self._first_ladder()
        else:
            self._begin_with(effort_named(self.effort.begins_with))
        self._windows()
        for _ in range(self.effort.rounds):
            if self._is_proven:
                return
            before = self.cost
            self._beams(*self._targets_around(), self.effort.width, self.effort.targets)
            self._windows()
            if not self.cost < before:
                break

    def _first_ladder(self) -> None:
        """Narrow beams for targets of every size; without success, whatever finds a placement."""
        low, high = self._all_targets()
        self._beams(low, high, self.effort.first_width, self.effort.first_targets)
        if math.isinf(self._known_s):
            self._beams(high, LARGEST_TARGET * high, self.effort.width, self.effort.targets)
        if math.isinf(self._known_s):
            self.know(greedy_code(self.question))
        if math.isinf(self._known_s) and self._left > 0 and not self.budget.is_exhausted:
            budget = Budget(min(self._left, RESCUE_EVALUATIONS), self.budget.seconds_left)
            self.know(cross_entropy_code(self.question._replace(budget=budget, seed=0, start=None)))
            self.budget.spend(budget.evaluations_used)

    def _begin_with(self, effort: Effort) -> None:
        """All that a smaller effort does; its best placements are where this one goes on."""
        effort = effort.changed(sweeps=self.effort.sweeps)
        smaller = _Search(self.scorer, self.question, effort)
        smaller.know(self.code)
        smaller.find_fast()
        self._is_proven, found = smaller._is_proven, smaller._elite
        for stages, count, cost in zip(found.stages, found.num_stages, found.cost, strict=True):
            if count > 0:
                admit(self._elite, stages, count, cost, False)

    def _all_targets(self) -> tuple[float, float]:
        """Targets below which no placement is, and above which none is worth it."""
        problems, lower_s = self.problems, float(self.problems.lower_bound_s[0])
        least_fill_s = float(problems.fastest_prefix_s[0, -1])
        low = max(lower_s - 2 * least_fill_s, float(problems.least_target_s[0]))
        high = LARGEST_TARGET * lower_s if math.isinf(self._known_s) else self._known_s
        return low, max(high, 1.01 * low)

    def _targets_around(self) -> tuple[float, float]:
        if math.isinf(self._known_s):
            return self._all_targets()
        bottleneck_s = self.cost - fill_s(
            self.kernel, self._elite.stages[0], self._elite.num_stages[0]
        )
        return AROUND[0] * bottleneck_s, AROUND[1] * bottleneck_s

    def _beams(self, low: float, high: float, width: int, count: int) -> None:
        """One beam for each target from `low` to `high`, and the descent of the best placements."""
        if self.budget.is_exhausted or self._left < width * count:
            return
        targets = np.geomspace(low, high, count)
        # Bottlenecks between a target and the next smaller one are looked for.
        below = np.concatenate([[low * low / targets[1]], targets[:-1]])
        limits = self._known_s * SLACK - below
        found = beam(
            self.scorer, self.problems,
            Aims(targets[None], limits[None], np.array([self._known_s])), width,
            slack=SLACK, most_found=MOST_FOUND, should_stop=lambda: self.budget.is_exhausted,
        )  # fmt: skip
        self.budget.spend(width * count)
        self._descend(found.step_time_s[0], found.code[0], self.effort.descents)

    def _descend(self, step_time_s: Floats, codes: NDArray[np.int16], most: int) -> None:
        """Improves the best of some placements."""
        if self.budget.is_exhausted:
            return
        spent = descend_best(
            self.kernel, self.goal, step_time_s, codes, most,
            self._left, self._elite,
        )  # fmt: skip
        self.budget.spend(spent)

    def _windows(self) -> None:
        """Chooses windows of the best placements anew until none gets better."""
        elite = self._elite
        if self.effort.window == 0 or self._is_proven:
            return
        if self.effort.sweeps and 0 < elite.num_stages[0] <= self.effort.window:
            self._sweep()
        for _ in range(len(elite.cost)):
            if self._is_proven:
                return
            promising = elite.cost <= PROMISING * self.cost
            waiting = np.flatnonzero(~elite.is_done & (elite.num_stages > 0) & promising)
            if len(waiting) == 0:
                return
            place = int(waiting[0])
            elite.is_done[place] = True
            stages, count = elite.stages[place].copy(), int(elite.num_stages[place])
            cost = float(elite.cost[place])
            # Large windows of long chains do not get through: small ones come first.
            for size in sorted({min(SMALL_WINDOW, self.effort.window), self.effort.window}):
                count, cost = self._improve_windows(stages, count, cost, size)
            admit(elite, stages, count, cost, True)

    def _sweep(self) -> None:
        """Chooses all stages anew, exactly, where that is no more work than a few windows."""
        code = self.code
        if self._is_swept or code is None or self.budget.is_exhausted or self._left == 0:
            return
        self._is_swept, count = True, int(self._elite.num_stages[0])
        # Whether it begins must not depend on the budget, or a larger one could lose.
        seconds_left = self.budget.seconds_left / SECONDS_PER_TRANSITION
        found = solve(
            self.kernel, self.goal, known=code, max_seconds=SWEEP_S, polish_evaluations=0,
            max_transitions=min(self._left * count, seconds_left),
        )  # fmt: skip
        # It looks at its limit after each set of stages, and may be a few beyond.
        self.budget.spend(min(-(-found.transitions // count), self._left))
        self._is_proven = found.status == "optimal"
        better = found.incumbent if found.code is None else found.code
        if better is not None:
            self._admit(better, self._is_proven)

    def _improve_windows(
        self, stages: NDArray[np.int64], count: int, cost: float, size: int
    ) -> tuple[int, float]:
        """Changes the stages in place; returns how many there are then, and their cost."""
        while not self.budget.is_exhausted:
            per_evaluation, before = count, cost
            most = min(self.effort.window_tries, self._left * per_evaluation)
            count, cost, tried = improve_windows(
                self._windowed, stages, count, cost, size, self._labels, most
            )
            self.budget.spend(-(-tried // per_evaluation))
            if tried < most or cost == before:
                break
        return count, cost

    def find_cheap(self) -> None:
        """The least price times step time: few and cheap devices, as slow as is worth it."""
        quick = self.effort.changed(rounds=0, begins_with=None)
        fast = self._fastest(quick, self.code)
        if fast._known_s > self.goal.floor_s:
            fast = self._fastest(self.effort, fast.code)
        if fast.code is not None:
            self._descend(np.zeros(1), fast.code[None], 1)
        knows_prices = isinstance(self.scorer, Policy) and self.scorer.knows_prices
        if math.isfinite(fast._known_s):
            slowest_s = min(self.goal.floor_s, SLOWEST * fast._known_s)
            if knows_prices:
                self._priced_rounds(fast, slowest_s)
            else:
                self._cheap_beams(slowest_s)
        self._windows()

    def _fastest(self, effort: Effort, start: Code | None) -> _Search:
        """The search for the least step time, from what is known."""
        fast = _Search(self.scorer, self.question._replace(goal=STEP_TIME), effort)
        fast.know(start)
        fast.find_fast()
        return fast

    def _priced_rounds(self, fast: _Search, slowest_s: float) -> None:
        """Beams under price limits: for steps of every length, then around the best placement."""
        effort, least_price = self.effort, float(self.kernel.price_usd_per_hour.min())
        if least_price > 0:
            slowest_s = min(slowest_s, self._known_s / least_price)
        shortest_s, (_, share) = min(fast._known_s, slowest_s), fast._step_and_share()
        ladder = first_ladder(
            shortest_s, slowest_s, share, effort.price_targets, effort.price_shares
        )
        self._priced_beams(ladder, effort.price_width)
        for _ in range(effort.price_rounds):
            before = self.cost
            self._windows()
            if math.isinf(self._known_s):
                return
            ladder = ladder_around(*self._step_and_share(), slowest_s, effort.price_shares)
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
        if self.budget.is_exhausted or self._left < width * len(steps_s) * len(shares):
            return
        targets = steps_s[:, None] * np.clip(shares, 0.05, 0.99)
        fill_limits = steps_s[:, None] - targets * PRICE_EARLY
        price_limits = np.broadcast_to(
            (PRICE_SLACK * ratio * self._known_s / steps_s)[:, None], targets.shape
        )
        slowest = np.array([steps_s.max() * (1 + ROUNDING)])
        aims = Aims(
            targets.reshape(1, -1), fill_limits.reshape(1, -1), slowest, price_limits.reshape(1, -1)
        )
        found = beam(
            self.scorer, self.problems, aims, width, slack=math.inf, most_found=MOST_FOUND,
            should_stop=lambda: self.budget.is_exhausted,
        )  # fmt: skip
        self.budget.spend(width * targets.size)
        self._descend(found.step_time_s[0], found.code[0], self.effort.descents)

    def _step_and_share(self) -> tuple[float, float]:
        """Step time of the best placement, and the bottleneck's share of it."""
        stages, count = self._elite.stages[0], int(self._elite.num_stages[0])
        used = np.empty(self.kernel.num_classes, np.int64)
        step_time_s = search_cost(stages, count, self.kernel, used, STEP_TIME)
        return step_time_s, 1 - fill_s(self.kernel, stages, count) / step_time_s

    def _cheap_beams(self, slowest_s: float) -> None:
        """One beam for each set of classes and target, and the descent of the cheapest."""
        effort = self.effort
        subsets = [
            subset
            for subset in class_subsets(self.tables)
            if math.isfinite(price_bound(restricted(self.tables, subset))[0])
        ]
        charge = len(subsets) * effort.price_targets * effort.price_width
        if not subsets or self.budget.is_exhausted or self._left < charge:
            return
        packed = pack_problems([restricted(self.tables, subset) for subset in subsets])
        targets = np.geomspace(
            np.minimum(packed.least_target_s, slowest_s), slowest_s, effort.price_targets, axis=1
        )
        found = beam(
            self.scorer, packed,
            Aims(targets, np.full(targets.shape, np.inf), np.full(len(subsets), slowest_s)),
            effort.price_width, slack=math.inf, most_found=MOST_FOUND,
            should_stop=lambda: self.budget.is_exhausted,
        )  # fmt: skip
        self.budget.spend(charge)
        for index, subset in enumerate(subsets):
            found.code[index] = renamed(found.code[index], np.array(subset, np.int16))
        codes = found.code.reshape(-1, found.code.shape[2])
        self._descend(found.step_time_s.ravel(), codes, effort.descents)
