"""What a search found on its way, simulated, and small moves from the best of it.

A search minimises the closed form. What it liked best before its last find differs in stages, and
may be faster as it runs: so the simulator chooses among its finds, and goes on from there.
"""

from __future__ import annotations

import math

from heterps_agents.finishing.shortlist import Simulations, best_simulated
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.views import fastest
from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.arrays import Code
from heterps_envs.closed_form.bounds import bound_for, least_cost
from heterps_envs.closed_form.objective import ROUNDING
from heterps_envs.closed_form.placement import (
    closed_form_of_plan_s,
    encode,
    placement_of,
)
from heterps_envs.problem import Problem

# The last finds of a search that are simulated.
MOST_FINDS = 12
# Stages that may be simulated, of all views together.
MOST_STAGES = 1000


def best_of_finds(problem: Problem, plan: Plan, budget: Budget) -> Plan:
    """The plan, or one of the finds of its search, or one near them, that the simulator prefers.

    Args:
        problem: What was asked.
        plan: The search's answer, with its bound.
        budget: That the search had. Its seconds end this; simulations are none of its evaluations.
    """
    if budget.time_share >= 1.0:
        return plan
    seconds_left = budget.seconds_left
    own = Budget(seconds=None if math.isinf(seconds_left) else seconds_left)
    plans = [plan, *_found(problem, budget)]
    views, found = problem.views, [plan]
    for view in views:
        question = Question.of(view, own, plan.seed)
        codes = _codes(question, view, plans)
        if codes:
            most = MOST_STAGES / len(views)
            settings = Simulations(plan.planner, most, least_cost(view))
            best = best_simulated(view, question, codes, settings)
            if best.found is not None and math.isfinite(best.cost):
                found.append(best.plan)
    best_plan = fastest(problem, found)
    if best_plan.runs_like(plan):
        return plan
    return best_plan.changed(bound=_bound(problem, plan.bound, best_plan))


def _bound(problem: Problem, known: Bound, plan: Plan) -> Bound:
    """How far another plan is from what is known to be the least, by the closed form."""
    placement = placement_of(problem, plan)
    least_s, is_price = known.step_time_s, problem.job.objective == "price"
    if not least_s or placement is None or is_price:
        return bound_for(problem, plan)
    gap = closed_form_of_plan_s(problem, plan, placement) / least_s - 1
    if gap < -ROUNDING:
        return bound_for(problem, plan)
    return Bound(
        step_time_s=least_s,
        gap=max(0.0, gap),
        status="proven" if gap <= ROUNDING and known.status == "proven" else "bounded",
    )


def _found(problem: Problem, budget: Budget) -> list[Plan]:
    """Plans of the last finds, the newest first; finds for other sizes of micro-batches are not."""
    plans: list[Plan] = []
    for find in reversed(budget.finds):
        if len(plans) == MOST_FINDS:
            break
        plan = None if find.plan is None else find.plan()
        if plan is not None and plan.job == problem.job:
            plans.append(plan)
    return plans


def _codes(question: Question, view: Problem, plans: list[Plan]) -> list[Code]:
    """Of plans that are placements of a view and fit there, each once."""
    codes: dict[bytes, Code] = {}
    for plan in plans:
        placement = placement_of(view, plan)
        if placement is None:
            continue
        try:
            code = encode(placement, question.options)
        except ValueError:  # an option that another one dominates here
            continue
        if math.isfinite(question.cost(code)):
            codes.setdefault(code.tobytes(), code)
    return list(codes.values())
