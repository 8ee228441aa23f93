"""The best placements that a learned search knows, and what makes them better.

The best few of what beams find descend (`heterps_agents.search.refine`); then windows of stages are
chosen anew and exactly (`heterps_agents.learned.windows`), and where the best placement has no more
stages than a window, all of them (`heterps_agents.exact.solve`): that answer is proven. Another one
is polished at the end, by rounds of cool annealing (`heterps_agents.search.annealing`): where
devices are of many classes, that finds what neither beams nor windows see, in less than their time.
"""

from __future__ import annotations

import math

import numpy as np

from heterps_agents.exact.solve import SECONDS_PER_TRANSITION, WorkLimits, solve
from heterps_agents.interface.question import Question
from heterps_agents.learned.beam import Aims, BeamResult, Scorer, beam
from heterps_agents.learned.window_labels import labels_for
from heterps_agents.learned.windows import WindowProblem, improve_windows
from heterps_agents.search.annealing import anneal
from heterps_agents.search.refine import admit, descend_best, fill_s, no_elite
from heterps_configs.documents.effort import Effort
from heterps_envs.arrays import Code, Floats, Integers
from heterps_envs.closed_form.formula import OPTION_MASK
from heterps_envs.closed_form.objective import (
    MISSES_FLOOR,
    STEP_TIME,
    code_cost,
    code_of,
    read_stages,
    search_cost,
)
from heterps_envs.environments.stage.packed import StageProblems, pack_problems

# Placements that a beam hands over.
MOST_FOUND = 4
SMALL_WINDOW = 4
# Windows of such placements are chosen anew that cost at most so much more than the best one.
PROMISING = 1.1
# Partial windows that are kept at most.
MOST_LABELS = 20_000
# Seconds, predicted and then counted in stages tried, for all stages at once.
SWEEP_S = 0.04
_ENDLESS = 1 << 60
# Of the rounds of annealing at the end, in turn, and evaluations of each. The first hardly ever
# takes worse placements; the second gets out of what the one before cannot leave.
POLISH_TEMPERATURES, POLISH_ROUND = (0.003, 0.01), 250_000


class BestPlacements:
    """The best placements so far, and the ways to better ones.

    Args:
        scorer: The policy.
        question: What to minimise, and the budget that is charged.
        effort: How much to do at most.
    """

    def __init__(self, scorer: Scorer, question: Question, effort: Effort) -> None:
        self.scorer, self.question, self.effort = scorer, question, effort
        self.tables, self.kernel, self.goal, self.budget, *_ = question
        self.problems = pack_problems([self.tables])
        self.elite = no_elite(effort.elite, self.kernel.num_layers)
        self._windowed = WindowProblem(
            self.kernel, self.goal, self.problems.class_price[0], self.problems.value_prefix_s[0]
        )
        self._labels = labels_for(
            MOST_LABELS, self.kernel.num_layers, self.kernel.num_classes, self.kernel.num_options
        )
        self.is_proven = self._is_swept = False
        # Where options are open: the best that was found for each set of them, by the closed form.
        self.by_options: dict[frozenset[int], tuple[float, Code]] = {}
        self._told = math.inf

    @property
    def cost(self) -> float:
        """Of the best placement; inf where there is none."""
        return float(self.elite.cost[0])

    @property
    def code(self) -> Code | None:
        """(L,) int32 of the best placement; None where there is none."""
        count = self.elite.num_stages[0]
        return code_of(self.elite.stages[0], count) if count > 0 else None

    @property
    def known_s(self) -> float:
        """Step time to beat; inf where no placement that fits is known."""
        return self.cost if self.cost < MISSES_FLOOR else math.inf

    @property
    def left(self) -> int:
        """Evaluations that may still be spent."""
        left = self.budget.evaluations_left
        return _ENDLESS if left is None else left

    def know(self, code: Code | None) -> None:
        """Begins with a known placement, improved."""
        if code is None:
            return
        self._admit(code, False)
        self.descend(np.zeros(1), code[None], 1)

    def _admit(self, code: Code, is_done: bool) -> None:
        stages = np.empty((self.kernel.num_layers + 1, 3), np.int64)
        cost = code_cost(code, self.kernel, self.goal)
        admit(self.elite, stages, read_stages(code, stages), cost, is_done)
        self._tell()

    def _tell(self) -> None:
        """The best placement, where it is a new one."""
        code, cost = self.code, self.cost
        if code is not None and cost < self._told:
            self._told = cost
            self.question.found(code, cost)

    def can_spend(self, evaluations: int) -> bool:
        """Whether the budget allows so many more."""
        return not self.budget.is_exhausted and self.left >= evaluations

    def beams(
        self, problems: StageProblems, aims: Aims, width: int, slack: float = math.inf
    ) -> BeamResult:
        """What one beam for each target finds; charged a beam's width for each."""
        found = beam(
            self.scorer, problems, aims, width, slack=slack, most_found=MOST_FOUND,
            should_stop=lambda: self.budget.is_exhausted,
        )  # fmt: skip
        self.budget.spend(width * aims.targets_s.size)
        return found

    def fill_s(self) -> float:
        """Fill of the best placement."""
        return float(fill_s(self.kernel, self.elite.stages[0], self.elite.num_stages[0]))

    def step_and_share(self) -> tuple[float, float]:
        """Step time of the best placement, and the bottleneck's share of it."""
        stages, count = self.elite.stages[0], int(self.elite.num_stages[0])
        used = np.empty(self.kernel.num_classes, np.int64)
        step_time_s = search_cost(stages, count, self.kernel, used, STEP_TIME)
        # Where nothing takes any time, nothing is a bottleneck either.
        return step_time_s, 1 - self.fill_s() / step_time_s if step_time_s > 0 else 0.0

    def descend(self, step_time_s: Floats, codes: Code, most: int) -> None:
        """Improves the best of some placements."""
        if self.question.options:
            self._remember(step_time_s, codes)
        if self.budget.is_exhausted:
            return
        spent = descend_best(
            self.kernel, self.goal, step_time_s, codes, most,
            self.left, self.elite,
        )  # fmt: skip
        self.budget.spend(spent)
        self._tell()

    def _remember(self, step_time_s: Floats, codes: Code) -> None:
        for code in codes[np.isfinite(step_time_s)]:
            used, cost = frozenset((code & OPTION_MASK).tolist()), self.question.cost(code)
            if cost < self.by_options.get(used, (math.inf, code))[0]:
                self.by_options[used] = cost, code

    def polish(self) -> None:
        """Small random changes of the best placement, and windows of what they lead to.

        In rounds that each go on from the best one, with a seed of their own: that finds more than
        one annealing of as many evaluations, which settles once.
        """
        total = self.effort.polish_evaluations
        for number, done in enumerate(range(0, total, POLISH_ROUND)):
            code, before, most = self.code, self.cost, min(POLISH_ROUND, total - done)
            if code is None or self.is_proven or not self.can_spend(most):
                return
            temperature = POLISH_TEMPERATURES[number % len(POLISH_TEMPERATURES)]
            found = anneal(
                code, self.kernel, self.goal, self.budget, self.question.seed + number,
                temperature=temperature, max_evaluations=most,
            )  # fmt: skip
            self._admit(found, False)
            if self.cost < before:
                self.windows()

    def windows(self) -> None:
        """Chooses windows of the best placements anew until none gets better."""
        elite = self.elite
        if self.effort.window == 0 or self.is_proven:
            return
        if self.effort.sweeps and 0 < elite.num_stages[0] <= self.effort.window:
            self._sweep()
        for _ in range(len(elite.cost)):
            if self.is_proven:
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
            self._tell()

    def _sweep(self) -> None:
        """Chooses all stages anew, exactly, where that is no more work than a few windows."""
        code = self.code
        if self._is_swept or code is None or self.budget.is_exhausted or self.left == 0:
            return
        self._is_swept, count = True, int(self.elite.num_stages[0])
        # Whether it begins must not depend on the budget, or a larger one could lose.
        seconds_left = self.budget.seconds_left / SECONDS_PER_TRANSITION
        found = solve(
            self.kernel, self.goal, known=code, max_seconds=SWEEP_S, polish_evaluations=0,
            limits=WorkLimits(transitions=min(self.left * count, seconds_left)),
        )  # fmt: skip
        # It looks at its limit after each set of stages, and may be a few beyond.
        self.budget.spend(min(-(-found.transitions // count), self.left))
        self.is_proven = found.status == "optimal"
        better = found.incumbent if found.code is None else found.code
        if better is not None:
            self._admit(better, self.is_proven)

    def _improve_windows(
        self, stages: Integers, count: int, cost: float, size: int
    ) -> tuple[int, float]:
        """Changes the stages in place; returns how many there are then, and their cost."""
        while not self.budget.is_exhausted:
            per_evaluation, before = count, cost
            most = min(self.effort.window_tries, self.left * per_evaluation)
            count, cost, tried = improve_windows(
                self._windowed, stages, count, cost, size, self._labels, most
            )
            self.budget.spend(-(-tried // per_evaluation))
            if tried < most or cost == before:
                break
        return count, cost
