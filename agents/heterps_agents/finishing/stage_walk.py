"""A walk on the simulator from a plan that is a chain, in the view of the problem that has it."""

from __future__ import annotations

import math

from heterps_agents.finishing.simulated_costs import SimulatedCosts
from heterps_agents.finishing.simulated_walk import walk
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Code
from heterps_envs.closed_form.placement import encode, placement_of
from heterps_envs.problem import Problem


def can_walk(problem: Problem) -> bool:
    """Whether walks are for this job: they take step times alone, of chains without chunks."""
    return problem.job.objective != "price" and problem.job.schedule != "interleaved"


def walked_over_stages(
    problem: Problem, plan: Plan, budget: Budget, seed: int, most_stages: float
) -> Plan | None:
    """The best of a walk, all replicas of a stage alike; None for a plan that no placement is.

    Args:
        problem: What was asked; the seed says in which of its views the plan is looked for first.
        plan: One that fits.
        budget: Its end ends the walk.
        seed: Of the walk.
        most_stages: Stages of all plans that may be simulated, replicas counted; with a limit in
            time, about what there is time for.
    """
    views, steps = problem.views, most_stages / len(plan.stages)
    for view in (*views[seed // 2 % len(views) :], *views[: seed // 2 % len(views)]):
        question = Question.of(view, budget, seed)
        code = code_of(question, view, plan)
        if code is None:
            continue
        costs = SimulatedCosts(view, question, plan.planner)
        costs.allow(math.inf if budget.has_time_limit else most_stages)
        walk(costs, question, costs.add(code), steps)
        fitting = (entry for entry in costs.best_first() if costs.fits(entry))
        best = next(fitting, None)
        return None if best is None else costs.with_chosen_sums(best).plan
    return None


def code_of(question: Question, view: Problem, plan: Plan) -> Code | None:
    """The code of a plan that is a placement of a view and fits there; None of any other one."""
    placement = placement_of(view, plan)
    if placement is None:
        return None
    try:
        code = encode(placement, question.options)
    except ValueError:  # an option that another one dominates here
        return None
    return code if math.isfinite(question.cost(code)) else None
