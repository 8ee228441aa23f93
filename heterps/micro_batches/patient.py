"""A plan for each size of micro-batches within a limit in time, all of which is used.

First what is found in tenths of a second, for all sizes; then plans of the sizes that simple
placements promise most of; then the best two of all, improved until the time is over.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from heterps.micro_batches.each_size import place_each_size
from heterps.micro_batches.one_size import finished_result, improve_one_size
from heterps.micro_batches.outlooks import bound_of, cost_of, minimised, rank
from heterps.micro_batches.place_result import PlaceResult, TriedSize
from heterps_agents.interface.patient import FIRST_PART, QUICK_PART, WAY_PART, PatientPlanner
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

# Of what is left of a way's time, for a quick plan of one size; of what is left for better plans,
# for each size.
QUICK_SIZE_PART, IMPROVED_PART = 1 / 2, 1 / 2
# Quick plans are finished that cost so many times what the best of them costs at most.
NEAR_QUICK = 1.2
# So many are improved at most, that cost so many times what the best costs at most.
MOST_IMPROVED, NEAR_BEST = 2, 1.1


class _Quick(NamedTuple):
    """A plan that was found in tenths of a second, and what the job minimises of it."""

    cost: float
    plan: Plan


def place_patiently(
    asked: Sequence[Problem], planner: PatientPlanner, budget: Budget
) -> tuple[list[TriedSize], list[PlaceResult]]:
    """What became of each size, and the best results of those that have a plan.

    Args:
        asked: The problem with each size.
        planner: Who is asked.
        budget: With a limit in time.

    Raises:
        InfeasibleError: None has a plan; the reason is that of the first.
    """
    own = budget.share(QUICK_PART)
    quick = _quick(asked, planner, own)
    budget.charge(own)
    own = budget.share(FIRST_PART)
    tried, answers = place_each_size(asked, planner.hurried(asked[0]), own, quick)
    budget.charge(own)
    return tried, _improved(answers, planner, budget)


def _quick(
    asked: Sequence[Problem], planner: PatientPlanner, budget: Budget
) -> dict[int, PlaceResult]:
    """What planners find that take tenths of a second, each for all sizes in turn; the best ones.

    The sizes come first that are best so far, then those with the least bound.
    """
    found: dict[int, _Quick] = {}
    bounds = [bound_of(each) for each in asked]

    def promise(index: int) -> tuple[float, float]:
        return found[index].cost if index in found else math.inf, bounds[index]

    for way in planner.quick_ways(asked[0]):
        own = budget.share(WAY_PART)
        for index in sorted(range(len(asked)), key=promise):
            known = min((each.cost for each in found.values()), default=math.inf)
            if own.is_exhausted or known <= bounds[index]:
                continue
            part = own.share(QUICK_SIZE_PART)
            if asked[index].job.objective == "throughput":
                part.known_cost = known
            plan = planner.quick_plan(asked[index], part, way)
            own.charge(part)
            if plan is not None:
                shown = estimate(asked[index], plan)
                new = _Quick(minimised(asked[index].job, shown), plan)
                found[index] = min(new, found.get(index, new), key=lambda each: each.cost)
        budget.charge(own)
    return _finished(asked, found, planner, budget)


def _finished(
    asked: Sequence[Problem], found: dict[int, _Quick], planner: PatientPlanner, budget: Budget
) -> dict[int, PlaceResult]:
    """Results of the plans that are near the best."""
    most = NEAR_QUICK * min((each.cost for each in found.values()), default=math.inf)
    results: dict[int, PlaceResult] = {}
    for index, (cost, plan) in found.items():
        if cost <= most:
            result = finished_result(asked[index], plan, planner, budget)
            if result is not None:
                results[asked[index].job.micro_batch_size] = result
    return results


def _improved(
    answers: Sequence[PlaceResult], planner: PatientPlanner, budget: Budget
) -> list[PlaceResult]:
    """The results, the best few of them improved: each with half of what is left, the last all."""
    ranked = sorted(answers, key=rank)
    most = NEAR_BEST * cost_of(ranked[0])
    near = [each for each in ranked if cost_of(each) <= most][:MOST_IMPROVED]
    found = list(ranked)
    for number, result in enumerate(near):
        if budget.is_exhausted:
            break
        own = budget.share(1.0 if result is near[-1] else IMPROVED_PART)
        found[number] = min(result, improve_one_size(result, planner, own), key=rank)
        budget.charge(own)
    return found
