"""A plan for each size of micro-batches, those first that promise most."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from heterps.micro_batches.one_size import place_one_size
from heterps.micro_batches.outlooks import cost_of, outlooks, rank, runs
from heterps.micro_batches.place_result import PlaceResult, TriedSize
from heterps.micro_batches.sizes import nearest_to_a_plan
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.system import System
from heterps_configs.errors import HeterpsError, InfeasibleError, TooDearError
from heterps_envs.problem import Problem

# Of what is left of a budget, for the size whose turn it is.
LEAST_PART = 1 / 2
# Why a size of micro-batches is not the one.
NO_BUDGET = "the budget was spent before its turn"
NO_PLAN = "no plan was found that fits"
NO_BETTER_PLAN = "no plan was found that fits and comes near the best"
TOO_DEAR = "an answer takes longer than the planner may"


def place_each_size(
    asked: Sequence[Problem],
    planner: Planner | System,
    budget: Budget,
    quick: Mapping[int, PlaceResult] | None = None,
) -> tuple[list[TriedSize], list[PlaceResult]]:
    """What became of each size, and the best results of those that have a plan.

    A size is left out whose lower bound is above what another one reaches, or whose simple
    placements are so far above it that no search makes up for that.

    Args:
        asked: The problem with each size.
        planner: Asked for each size, those first that promise most.
        budget: What it may spend.
        quick: What is known of some sizes, and returned where nothing better is found. It keeps
            the planner from no size: even plans near the best are no reason against others.

    Raises:
        TooDearError: None has a plan, and of this one the planner gave up.
        InfeasibleError: None has a plan; the reason is that of `nearest_to_a_plan`.
    """
    answers: dict[int, PlaceResult] = {}
    least = min(map(cost_of, filter(runs, (quick or {}).values())), default=math.inf)
    promises = outlooks(asked, planner, budget, least)
    reasons: dict[int, HeterpsError] = {}
    tried: list[TriedSize] = []
    for number, index in enumerate(sorted(range(len(asked)), key=promises.__getitem__)):
        outlook, size = promises[index], asked[index].job.micro_batch_size
        entry = TriedSize(size, outlook.bound, outlook.promised)
        known = min(map(cost_of, filter(runs, answers.values())), default=math.inf)
        if (answers or quick) and (outlook.loses_to(known) or budget.is_exhausted):
            tried.append(entry._replace(why=outlook.why(known) or NO_BUDGET))
            continue
        own = budget.share(max(1 / (len(asked) - number), LEAST_PART))
        if math.isfinite(known) and asked[index].job.objective == "throughput":
            own.known_cost = known
        try:
            found = place_one_size(asked[index], planner, own)
        except InfeasibleError as error:
            reasons[size] = error
            bound = max(entry.bound, error.least_step_time_s or 0.0)
            entry = entry._replace(bound=bound, why=NO_BETTER_PLAN if answers else NO_PLAN)
        except TooDearError as error:
            reasons[size] = error
            entry = entry._replace(why=TOO_DEAR)
        else:
            answers[size] = found
        tried.append(entry)
        budget.charge(own)
    for size, result in (quick or {}).items():
        answers[size] = min(answers.get(size, result), result, key=rank)
    if not answers:
        raise _reason(reasons, nearest_to_a_plan(asked).job.micro_batch_size)
    return tried, list(answers.values())


def _reason(reasons: Mapping[int, HeterpsError], nearest: int) -> HeterpsError:
    """Why no size has a plan: one of which the planner gave up may have one."""
    dear = (error for error in reasons.values() if isinstance(error, TooDearError))
    return next(dear, reasons[nearest])
