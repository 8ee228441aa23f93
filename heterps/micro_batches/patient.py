"""A plan for each size of micro-batches within a limit in time, all of which is used.

First what is found in tenths of a second, for all sizes; then plans of the sizes that simple
placements promise most of; then the best two of all, improved until the time is over. Where it is
not, because nothing better has their sizes, other sizes are searched, whatever is promised of them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from heterps.micro_batches.carried import with_carried
from heterps.micro_batches.each_size import place_each_size
from heterps.micro_batches.one_size import (
    Improve,
    improve_one_size,
    place_one_size,
    with_divided_state,
)
from heterps.micro_batches.outlooks import bound_of, cost_of, rank
from heterps.micro_batches.place_result import PlaceResult, TriedSize
from heterps.micro_batches.quick import QuickPlans
from heterps_agents.interface.patient import PatientPlanner, first_part, quick_part
from heterps_agents.interface.planner import Budget
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.executable import (
    ANSWER_S,
    SAME,
    are_soon_too_few,
    goes_through_stages,
)

# Of what is left for better plans, for each size.
IMPROVED_PART = 1 / 2
# Of what is left after first plans, for the question whether anything may be better.
ASKED_PART = 1 / 2
# Plans are looked around that cost so many times what the best costs at most, each with a part of
# what is left then.
NEAR_FIRST, MOVED_PART = 1.5, 1 / 3
# And for a size that was not improved, where time is left.
OTHER_PART = 1 / 2
# So many are improved at most, that cost so many times what the best costs at most.
MOST_IMPROVED, NEAR_BEST = 2, 1.1


def place_patiently(
    asked: Sequence[Problem], planner: PatientPlanner, budget: Budget
) -> tuple[list[TriedSize], list[PlaceResult]]:
    """What became of each size, and the best results of those that have a plan.

    Args:
        asked: The problem with each size.
        planner: Who is asked.
        budget: With a limit in time.

    Raises:
        InfeasibleError: None has a plan; the reason is that of the one nearest to a plan.
    """
    own = budget.share(quick_part(asked[0]))
    quick = QuickPlans(asked, planner)
    quick.look(own)
    finished = quick.finished(own)
    budget.charge(own)
    own = budget.share(first_part(asked[0]))
    tried, answers = place_each_size(asked, planner.hurried(asked[0]), own, finished)
    budget.charge(own)
    answers = with_carried(answers, asked, planner, budget)
    answers = _improved(_moved(answers, planner, budget), asked, planner, budget)
    return tried, _with_other_sizes(answers, asked, planner, budget)


def _moved(
    answers: Sequence[PlaceResult], planner: PatientPlanner, budget: Budget
) -> list[PlaceResult]:
    """The results; those that one search from them may make the best, after that search."""
    ranked = sorted(answers, key=rank)
    most = NEAR_FIRST * cost_of(ranked[0])
    found = list(ranked)
    for number, result in enumerate(each for each in ranked if cost_of(each) <= most):
        if budget.is_exhausted:
            break
        own = budget.share(MOVED_PART)
        found[number] = _better(result, planner, planner.nearby, own)
        budget.charge(own)
    return found


def _improved(
    answers: Sequence[PlaceResult],
    asked: Sequence[Problem],
    planner: PatientPlanner,
    budget: Budget,
) -> list[PlaceResult]:
    """The results, the best few of them improved: each with half of what is left, the last all.

    Where it is soon said that nothing is better, that ends it.
    """
    ranked = sorted(answers, key=rank)
    near, found = _near(ranked), list(ranked)
    for number, result in enumerate(near):
        if budget.is_exhausted or _is_proven(found, asked, planner, budget):
            break
        own = budget.share(1.0 if result is near[-1] else IMPROVED_PART)
        found[number] = _better(result, planner, planner.improved, own)
        budget.charge(own)
    return found


def _with_other_sizes(
    answers: Sequence[PlaceResult],
    asked: Sequence[Problem],
    planner: PatientPlanner,
    budget: Budget,
) -> list[PlaceResult]:
    """The results, and those of sizes that were not improved, while there is time.

    A size is left out of which it is soon said that nothing is better there.
    """
    ranked = sorted(answers, key=rank)
    found = list(ranked)
    improved = {each.problem.job.micro_batch_size for each in _near(ranked)}
    for problem in sorted(asked, key=bound_of):
        best = min(found, key=rank)
        if budget.is_exhausted or _is_proven(found, asked, planner, budget):
            break
        if problem.job.micro_batch_size in improved or bound_of(problem) >= cost_of(best):
            continue
        own = budget.share(OTHER_PART)
        first = own.share(first_part(problem))
        result: PlaceResult | None = None
        with contextlib.suppress(InfeasibleError):
            result = place_one_size(problem, planner.hurried(problem), first)
        own.charge(first)
        if result is not None:
            found.append(_better(result, planner, planner.improved, own))
        budget.charge(own)
    return found


def _near(ranked: Sequence[PlaceResult]) -> list[PlaceResult]:
    """The best few results, which are improved."""
    most = NEAR_BEST * cost_of(ranked[0])
    return [each for each in ranked if cost_of(each) <= most][:MOST_IMPROVED]


def _is_proven(
    answers: Sequence[PlaceResult],
    asked: Sequence[Problem],
    planner: PatientPlanner,
    budget: Budget,
) -> bool:
    """Whether no size holds anything better than the best result; where that is soon said."""
    best = min(answers, key=rank)
    if not goes_through_stages(best.problem) or budget.seconds_left < ANSWER_S:
        return False
    least_s = cost_of(with_divided_state(best, planner)) * (1 - SAME)
    own = budget.share(ASKED_PART)
    is_known = are_soon_too_few(asked, least_s, lambda: own.is_exhausted)
    budget.charge(own)
    return is_known


def _better(
    result: PlaceResult, planner: PatientPlanner, improve: Improve, budget: Budget
) -> PlaceResult:
    return min(result, improve_one_size(result, planner, improve, budget), key=rank)
