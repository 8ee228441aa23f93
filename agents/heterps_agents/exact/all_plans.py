"""Bounds of all plans that a strategy allows, where planners form only some of them.

Planners form groups that divide every node of a class, and count memory by a linear rule that is
never below what a plan takes. Where options are open a strategy allows more: other groups, and what
fits by the simulator alone. `options.bounding_tables` are a relaxation of all of these. Mostly
nothing of it is below the planners' own optimum, and that is soon proven: the optimum is a limit.
"""

from __future__ import annotations

import math

from heterps_agents.exact.solve import ExactResult, solve
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.closed_form.bounds import bound_by_optimum, bound_for
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import TIE_BREAK_USD_PER_HOUR, Goal
from heterps_envs.options import MAX_OPTIONS, bounding_tables
from heterps_envs.problem import Problem
from heterps_envs.useful_options import without_dropped


def bound_of_all(
    problem: Problem, plan: Plan, optimum: ExactResult, budget: Budget, max_seconds: float
) -> Bound:
    """How far a plan is from the optimum: proven where it is that of the planners' placements.

    What is not proven is about every plan that the strategy allows: by the same optimum, unless
    there may be something below it; then by what is least of all, and where that takes too long to
    find by `bound_for`.

    Args:
        problem: What was asked.
        plan: The answer.
        optimum: Of the tables of `planner.proving_tables`.
        budget: Counts the transitions of the second proof.
        max_seconds: That it may take.
    """
    bound = bound_by_optimum(problem, plan, optimum.step_time_s, optimum.price_usd_per_hour)
    if problem.strategy.is_plain or bound.status == "proven" or bound.step_time_s is None:
        return bound
    cost = optimum.step_time_s
    if problem.job.objective == "price":
        cost *= optimum.price_usd_per_hour + TIE_BREAK_USD_PER_HOUR
    least = least_of_all(problem, cost, min(max_seconds, budget.seconds_left))
    budget.spend_beside(least.transitions)
    if least.status == "infeasible":
        return bound
    if least.code is None:
        return bound_for(problem, plan)
    return bound_by_optimum(problem, plan, least.step_time_s, least.price_usd_per_hour)


def least_of_all(problem: Problem, below: float, max_seconds: float) -> ExactResult:
    """What costs least by the bounding tables: no plan that the strategy allows costs less.

    Args:
        problem: With its strategy.
        below: Of the objective; `infeasible` says that nothing costs less.
        max_seconds: That it may take.
    """
    kernel = kernel_tables(without_dropped(bounding_tables(problem)))
    if kernel.num_options > MAX_OPTIONS:
        return ExactResult(None, math.inf, math.inf, 0, "over budget")
    return solve(kernel, Goal.of(problem.job), below=below, max_seconds=max_seconds)
