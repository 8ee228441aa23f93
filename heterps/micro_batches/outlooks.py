"""What a size of micro-batches promises before anything is searched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from heterps.micro_batches.place_result import PlaceResult
from heterps_agents.finishing.strategies import is_hopeless, promised_cost
from heterps_agents.interface.patient import PatientPlanner
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.system import System
from heterps_envs.closed_form.bounds import placements_bound_s
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.simulate import minimised

# Of a limit in evaluations, for simple placements, which say what a size promises.
LOOKED_PART = 1 / 2
# Why a size of micro-batches is not the one.
BOUND_IS_ABOVE = "no placement that fits by the planners' rule is below the bound"
IS_HOPELESS = "simple placements cost too much for any search to make up"


class Outlook(NamedTuple):
    """What is known of a size before anything is searched; in what the job minimises.

    Attributes:
        is_unseen: Nobody looked at it: its bound is all that is promised; it comes after others.
        promised: Of simple placements, by the closed form, or of a plan that is there.
        bound: No placement that fits by the rule of planners costs less.
    """

    is_unseen: bool
    promised: float
    bound: float

    def loses_to(self, known: float) -> bool:
        """Whether it can be left out beside a plan that costs so much."""
        return known <= self.bound or is_hopeless(self.promised, known)

    def why(self, known: float) -> str:
        """Why it is left out; empty where it is not."""
        if known <= self.bound:
            return BOUND_IS_ABOVE
        return IS_HOPELESS if is_hopeless(self.promised, known) else ""


def outlooks(
    asked: Sequence[Problem],
    planner: Planner | System,
    budget: Budget,
    known: float = math.inf,
) -> list[Outlook]:
    """What each size promises, by simple placements.

    These count as evaluations. Where such are limited, a planner that looks at simple placements
    itself looks at them here already, with `LOOKED_PART` of the budget; another one does not.

    Args:
        asked: The problem with each size.
        planner: Who is asked.
        budget: What it may spend.
        known: What a plan costs that is there; nobody looks at sizes without better ones.
    """
    bounds = [bound_of(each) for each in asked]
    costs: dict[int, float] = {}
    looks = budget.evaluations is None or isinstance(planner, PatientPlanner)
    own = budget.share(LOOKED_PART)
    for index in sorted(range(len(asked)), key=bounds.__getitem__):
        if math.isinf(bounds[index]) or bounds[index] >= known:
            continue
        if looks and not (own.evaluations is not None and own.is_exhausted):
            costs[index] = _promised(asked[index], own)
    budget.charge(own)
    return [
        Outlook(index not in costs, costs.get(index, bound), bound)
        for index, bound in enumerate(bounds)
    ]


def _promised(problem: Problem, budget: Budget) -> float:
    """What simple placements cost, in what the job minimises."""
    promised, job = promised_cost(problem, budget), problem.job
    if job.objective == "price":  # of seconds times dollars per hour
        promised *= 1e6 / 3600 / job.global_batch_size
    return promised


def bound_of(problem: Problem) -> float:
    """A bound of every plan's step time; 0 where the price counts."""
    if problem.job.objective == "price":
        return 0.0
    return placements_bound_s(problem)


def runs(result: PlaceResult) -> bool:
    """Whether a result's plan can be run."""
    return can_run(result.problem, result.plan)


def rank(result: PlaceResult) -> tuple[bool, float]:
    """What results are compared by: plans that cannot be run yet come last."""
    return not runs(result), cost_of(result)


def best_of_each(results: Iterable[PlaceResult]) -> list[PlaceResult]:
    """Of each size of micro-batches the best result, the best one first."""
    found: dict[int, PlaceResult] = {}
    for each in sorted(results, key=rank):
        found.setdefault(each.plan.job.micro_batch_size, each)
    return list(found.values())


def cost_of(result: PlaceResult) -> float:
    """What the job minimises."""
    return minimised(result.problem.job, result.estimate)
