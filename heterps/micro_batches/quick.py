"""What planners find in tenths of a second, for all sizes of micro-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import NamedTuple

from heterps.micro_batches.one_size import finished_result
from heterps.micro_batches.outlooks import bound_of
from heterps.micro_batches.place_result import PlaceResult
from heterps_agents.interface.patient import WAY_PART, PatientPlanner
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate, minimised

# Of what is left of a way's time, for a quick plan of one size.
SIZE_PART = 1 / 2
# Quick plans are finished that cost so many times what the best of them costs at most: with more
# micro-batches in flight one behind slow links may take so many times less. Sizes whose plans cost
# more are asked of nobody else.
NEAR_QUICK = 1.6


class _Quick(NamedTuple):
    """A plan that was found in tenths of a second, and what the job minimises of it."""

    cost: float
    plan: Plan


class QuickPlans:
    """The best quick plan of each size that has one.

    Args:
        asked: The problem with each size.
        planner: Who is asked.
    """

    def __init__(self, asked: Sequence[Problem], planner: PatientPlanner) -> None:
        self._asked, self._planner = asked, planner
        self._found: dict[int, _Quick] = {}

    def look(self, budget: Budget, ways: Sequence[str] | None = None) -> None:
        """Asks for all that is quick, or for some ways, each with a share of what is left."""
        ways = self._planner.quick_ways(self._asked[0]) if ways is None else ways
        for number, way in enumerate(ways, start=1):
            own = budget.share(1.0 if number == len(ways) else WAY_PART)
            own.known_cost = self._known(own)
            plans = self._planner.quick_plans(self._asked, own, way)
            if plans is None:
                self._look_at_each(way, own)
            for index, plan in (plans or {}).items():
                self._keep(index, plan)
            budget.charge(own)

    def finished(self, budget: Budget) -> dict[int, PlaceResult]:
        """Results by the sizes, of the plans that are near the best."""
        most = NEAR_QUICK * min((each.cost for each in self._found.values()), default=math.inf)
        results: dict[int, PlaceResult] = {}
        for index, (cost, plan) in self._found.items():
            if cost <= most:
                result = finished_result(self._asked[index], plan, self._planner, budget)
                if result is not None:
                    results[self._asked[index].job.micro_batch_size] = result
        return results

    def _look_at_each(self, way: str, budget: Budget) -> None:
        """The sizes come first that are best so far, then those with the least bound.

        Those are left out whose plans so far are behind the best by more than any choice makes up.
        """
        for index in sorted(range(len(self._asked)), key=self._promise):
            least = min((each.cost for each in self._found.values()), default=math.inf)
            is_behind = NEAR_QUICK * least < self._promise(index)[0] < math.inf
            # Where no placement has room by the planners' rule, a plan may fit all the same.
            is_best = math.isfinite(least) and least <= self._bounds[index]
            if budget.is_exhausted or is_best or is_behind:
                continue
            part = budget.share(SIZE_PART)
            part.known_cost = self._known(part)
            plan = self._planner.quick_plan(self._asked[index], part, way)
            budget.charge(part)
            if plan is not None:
                self._keep(index, plan)

    @cached_property
    def _bounds(self) -> list[float]:
        return [bound_of(each) for each in self._asked]

    def _known(self, budget: Budget) -> float:
        """What plans cost that need not be found."""
        if self._asked[0].job.objective != "throughput":
            return budget.known_cost
        return min((each.cost for each in self._found.values()), default=math.inf)

    def _promise(self, index: int) -> tuple[float, float]:
        cost = self._found[index].cost if index in self._found else math.inf
        return cost, self._bounds[index]

    def _keep(self, index: int, plan: Plan) -> None:
        cost = minimised(self._asked[index].job, estimate(self._asked[index], plan))
        if index not in self._found or cost < self._found[index].cost:
            self._found[index] = _Quick(cost, plan)


def with_quick(
    answers: Sequence[PlaceResult],
    asked: Sequence[Problem],
    planner: PatientPlanner,
    budget: Budget,
) -> list[PlaceResult]:
    """The results, and what is soon found of each size by ways that end by themselves.

    Args:
        answers: Of the sizes that were searched, without a limit in time.
        asked: The problem with each size.
        planner: Who searched them.
        budget: Is charged; none of these ways counts placements, so that no limit of them ends one.
    """
    ways = planner.ending_ways(asked[0])
    if not ways:
        return list(answers)
    quick, own = QuickPlans(asked, planner), Budget()
    quick.look(own, ways)
    found = quick.finished(own)
    budget.charge(own)
    return [*answers, *found.values()]
