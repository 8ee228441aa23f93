"""Walks from a plan that is a chain, in the view of the problem that has it.

First by the clock (`heterps_agents.finishing.clock_walk`), which sees many placements; then on the
simulator, from the best of these.
"""

from __future__ import annotations

import math

from heterps_agents.finishing.clock_walk import best_by_clock
from heterps_agents.finishing.simulated_costs import SimulatedCosts
from heterps_agents.finishing.simulated_walk import walk
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Code
from heterps_envs.closed_form.placement import encode, placement_of
from heterps_envs.problem import Problem

# Of the time that is left, what walks by the clock may take.
CLOCK_PART = 1 / 3
# For so many stages that may be simulated one more of these walks begins. Each round of walks may
# try so many changes for each of the stages, and so many at most, as where time is limited.
STAGES_OF_WALK, CHANGES, MOST_CHANGES, MOST_HURRIED_CHANGES = 1000, 4, 4000, 20_000
# So many of the placements that they find are simulated.
MOST_SIMULATED = 8


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
        start = costs.add(code)
        found = costs.add_all(walks_by_clock(view, question, [code], most_stages))
        walk(costs, question, min([start, *found], key=lambda entry: entry.cost), steps)
        fitting = (entry for entry in costs.best_first() if costs.fits(entry))
        best = next(fitting, None)
        return None if best is None else costs.with_chosen_sums(best).plan
    return None


def walks_by_clock(
    view: Problem, question: Question, codes: list[Code], most_stages: float
) -> list[Code]:
    """The best placements of walks by the clock, best first.

    Args:
        view: Of what was asked.
        question: The same for searches; its budget is charged.
        codes: Where walks begin.
        most_stages: Stages that may be simulated: without a limit in time, as a measure.
    """
    budget = question.budget
    if budget.has_time_limit:
        own = budget.share(CLOCK_PART)
        walks, changes = 1, MOST_HURRIED_CHANGES
    else:
        own = budget
        walks = 1 + int(most_stages // STAGES_OF_WALK)
        changes = int(min(CHANGES * most_stages, MOST_CHANGES))
    found = best_by_clock(view, question._replace(budget=own), codes, walks, changes)
    if own is not budget:
        budget.charge(own)
    return found[:MOST_SIMULATED]


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
