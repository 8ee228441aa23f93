"""A walk on the simulator: small changes of a plan, in a random order, judged by nothing else.

Formulas do not know what slow links and waiting cost; where they are far from the simulator, what
they like least may be the way to the best plan. So some of the changes are worse, less and less so
(threshold accepting: Dueck and Scheuer, 1990).
"""

from __future__ import annotations

import random
from itertools import chain

from heterps_agents.asymmetric.judged import Judge, Judged
from heterps_agents.asymmetric.moves import Moves
from heterps_agents.asymmetric.weave import Weave, plan_of_weave
from heterps_agents.finishing.simulated_walk import MOST_TRIED, THRESHOLD
from heterps_agents.interface.planner import Budget

# A better plan is so much better.
GAIN = 1 - 1e-4


class Walk:
    """Walks from one plan.

    Args:
        judge: Simulates.
        moves: The changes.
        seed: Of the order in which they are tried.
    """

    def __init__(self, judge: Judge, moves: Moves, seed: int) -> None:
        self._judge, self._moves, self._random = judge, moves, random.Random(seed)
        self._known: dict[Weave, Judged] = {}

    def best_from(self, start: Weave, known: Judged, budget: Budget) -> Judged:
        """The best plan on the way, or that one; all the time of a budget is used.

        Args:
            start: Where it begins.
            known: The same, simulated.
            budget: With a limit in time.
        """
        best, home = known, start
        current, here = start, known
        self._known[start] = known
        while not budget.is_exhausted:
            most = here.cost * (1 + THRESHOLD * (1 - budget.time_share))
            found = self._step(current, most, budget)
            if found is None:
                if current == home and set(self._neighbours(home)) <= self._known.keys():
                    break
                current, here = home, best
                continue
            current, here = found
            if here.cost < best.cost * GAIN:
                best, home = here, current
        return best

    def _neighbours(self, weave: Weave) -> list[Weave]:
        found = list(dict.fromkeys(chain(self._moves.cuts(weave), self._moves.changes(weave))))
        self._random.shuffle(found)
        return found

    def _step(self, weave: Weave, most: float, budget: Budget) -> tuple[Weave, Judged] | None:
        """The first change in a random order that costs less than so much."""
        tried = 0
        for changed in self._neighbours(weave):
            if budget.is_exhausted or tried == MOST_TRIED:
                return None
            if changed in self._known:
                continue
            tried += 1
            judged = self._judge.judged(plan_of_weave(changed, self._known[weave].plan), most)
            self._known[changed] = judged
            if judged.cost < most:
                return changed, judged
        return None
