"""From one plan to better ones: the formula finds what is promising, the simulator decides."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from typing import NamedTuple

from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.judged import Judge, Judged
from heterps_agents.asymmetric.moves import Moves
from heterps_agents.asymmetric.weave import Weave, plan_of_weave

# A better plan is so much better, by the simulator.
GAIN = 1 - 1e-4
# Plans in turn that differ in cuts and shares alone.
MOST_ALIKE = 3


class Patience(NamedTuple):
    """How long a descent goes on.

    Attributes:
        parts: Of plans that the formula is asked of, in all.
        tried: Plans that are simulated, in turn without a better one.
        near: None that the formula finds so many times as long as the best of all.
    """

    parts: int
    tried: int
    near: float


class Descent:
    """Looks for better plans than one, by small changes.

    Args:
        judge: Simulates.
        estimates: The formula.
        moves: The changes.
        patience: How many.
    """

    def __init__(
        self, judge: Judge, estimates: Estimates, moves: Moves, patience: Patience
    ) -> None:
        self._judge, self._estimates, self._moves = judge, estimates, moves
        self._patience, self._left = patience, patience.parts
        self._known: dict[Weave, float] = {}
        self._simulated: set[Weave] = set()
        self._path: list[Weave] = []

    def best_from(self, start: Weave, known: Judged) -> Judged:
        """The best plan that is found from one, or that one.

        Args:
            start: Where it begins.
            known: The same, simulated.
        """
        best, current = known, start
        while self._left > 0 and not self._judge.is_exhausted:
            self._simulated.add(current)
            self._descend(current)
            better = self._first_better(best)
            if better is None:
                break
            current, best = better
        return best

    def _first_better(self, best: Judged) -> tuple[Weave, Judged] | None:
        """Of what the formula likes, and what led there, the first that is simulated in less."""
        for weave in chain(islice(self._liked(), self._patience.tried), reversed(self._path)):
            if self._judge.is_exhausted:
                return None
            if weave in self._simulated:
                continue
            self._simulated.add(weave)
            judged = self._judge.judged(plan_of_weave(weave, best.plan), best.cost * GAIN)
            if judged.cost < best.cost * GAIN:
                return weave, judged
        return None

    def _liked(self) -> Iterator[Weave]:
        """What is best by the formula, the best first, and not too many that differ little."""
        most = self._patience.near * min(self._known.values(), default=math.inf)
        near = [
            weave
            for weave, cost in self._known.items()
            if cost <= most and weave not in self._simulated
        ]
        alike = Counter[frozenset[object]]()
        for weave in sorted(near, key=self._known.__getitem__):
            shape = _shape(weave)
            alike[shape] += 1
            if alike[shape] <= MOST_ALIKE:
                yield weave

    def _descend(self, start: Weave) -> None:
        """Notes all changes of a plan, of the best of them, and so on, by the formula."""
        current, cost, self._path = start, self._cost(start), []
        while self._left > 0:
            best, least = current, cost
            for weave in chain(self._moves.cuts(current), self._moves.changes(current)):
                if self._left <= 0 or self._judge.is_exhausted:
                    return
                found = self._cost(weave)
                if found < least * (1 - 1e-9):
                    best, least = weave, found
            if best is current:
                return
            current, cost = best, least
            self._path.append(current)

    def _cost(self, weave: Weave) -> float:
        known = self._known.get(weave)
        if known is None:
            self._left -= len(weave.groups)
            self._known[weave] = known = self._estimates.step_s(weave)
        return known


def _shape(weave: Weave) -> frozenset[object]:
    """Which devices stand in which lanes, and whether any state is divided."""
    return frozenset({bool(weave.sharded)}) | frozenset(
        (number, tuple((part.groups, part.memory) for part in lane.parts))
        for number, block in enumerate(weave.blocks)
        for lane in block
    )
