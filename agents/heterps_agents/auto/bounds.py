"""How far the plans of `auto` are from the optimum of the closed form."""

from __future__ import annotations

import math

from heterps_agents.finishing.strategies import NONE_NEAR
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import bound_by_optimum, bound_for, lower_bound
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.closed_form.objective import ROUNDING
from heterps_envs.closed_form.placement import placement_of
from heterps_envs.problem import Problem


def bound_by(optimum: Code, step_time_s: float, code: Code, question: Question) -> Bound:
    """How far a plan is from the optimum of the closed form.

    Args:
        optimum: Its code.
        step_time_s: And its step, which no plan is below.
        code: Of the plan.
        question: What was asked.
    """
    least = question.cost(optimum)
    if least <= 0:  # nothing takes any time, or costs any: no share of it is a gap
        is_least = question.cost(code) <= 0
        return Bound(step_time_s=step_time_s, gap=0.0, status="proven") if is_least else Bound()
    gap = max(0.0, question.cost(code) / least - 1)
    if question.goal.is_price and gap > ROUNDING:
        # The cheapest plan's step is no bound: a dearer plan may be faster.
        step_time_s = lower_bound(question.tables)
    return Bound(
        step_time_s=step_time_s, gap=gap, status="proven" if gap <= ROUNDING else "bounded"
    )


def bound_after(problem: Problem, before: Plan, plan: Plan) -> Bound:
    """Of a plan that was found later, by what is known from the one before.

    Args:
        problem: What was asked.
        before: The plan before, with its bound.
        plan: For the same problem.
    """
    if plan is before:
        return before.bound
    if placement_of(problem, plan) is None:
        return Bound()
    least_s = before.bound.step_time_s
    if least_s is None or problem.job.objective == "price":
        return bound_for(problem, plan)
    price = sum(problem.device_named[name].price_usd_per_hour for name in plan.devices)
    return bound_by_optimum(problem, plan, least_s, price)


def why_none(problem: Problem, budget: Budget) -> str:
    """Why there is no plan; where one is known already, nobody asks what else would be missing."""
    is_first = math.isinf(budget.known_cost)
    return f"auto: {explain_infeasible(problem) if is_first else NONE_NEAR}"
