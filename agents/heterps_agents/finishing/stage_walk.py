"""Walks from a plan that is a chain, in the view of the problem that has it.

First by the clock (`heterps_agents.finishing.clock_walk`), which sees many placements; then on the
simulator, from the best of these.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from heterps_agents.finishing.clock_walk import best_by_clock
from heterps_agents.finishing.simulated_costs import SimulatedCosts
from heterps_agents.finishing.simulated_walk import walk
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.views import fastest
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Code
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import simulated_step_time_s

# Of the time that is left, what walks by the clock may take.
CLOCK_PART = 1 / 3
# The same where nothing but simulating the best of them follows.
ALONE_PART = 2 / 3
# The same of each walk of many, which follow one another.
END_PART = 1 / 2
# Without a limit in time a walk by the clock may try so many changes for each stage that may be
# simulated, and so many at most; with one, so many at most.
CHANGES, MOST_CHANGES, MOST_HURRIED_CHANGES = 48, 72_000, 20_000
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
    steps = most_stages / len(plan.stages)
    for view, question, code in _views_of(problem, plan, budget, seed):
        costs = SimulatedCosts(view, question, plan.planner)
        costs.allow(math.inf if budget.has_time_limit else most_stages)
        start = costs.add(code)
        found = costs.add_all(ends_by_clock(view, question, [code], most_stages))
        walk(costs, question, min([start, *found], key=lambda entry: entry.cost), steps)
        return _best_plan(costs)
    return None


def walked_by_clock(problem: Problem, plan: Plan, budget: Budget, seed: int) -> list[Plan]:
    """The best plans of walks by the clock alone, one for each view that has the plan.

    The first four arguments are those of `walked_over_stages`; all of the budget is used.
    """
    views, found = list(_views_of(problem, plan, budget, seed)), list[Plan | None]()
    for number, (view, question, code) in enumerate(views):
        own = budget.share(1 / (len(views) - number))
        costs = SimulatedCosts(view, question._replace(budget=own), plan.planner)
        part = own.share(ALONE_PART)
        codes = best_by_clock(view, question._replace(budget=part), [code], MOST_HURRIED_CHANGES)
        own.charge(part)
        costs.add_all([*codes[:MOST_SIMULATED], code])
        budget.charge(own)
        found.append(_best_plan(costs))
    return [each for each in found if each is not None]


def walked_on(
    problem: Problem,
    plan: Plan,
    budget: Budget,
    seed: int,
    part: float = END_PART,
    gain: float | None = None,
) -> Plan:
    """The plan, or a better one, by walks by the clock until the time of a budget is over.

    Each begins at the best plan so far, with the next seed.

    Args:
        problem: What was asked.
        plan: One that fits; one that is no placement stays as it is.
        budget: With a limit in time.
        seed: Of the first walk.
        part: Of the time that is left, what each may take.
        gain: A walk ends them after which a step takes more than this part of what it took before;
            None for none.
    """
    step_time_s = math.inf
    while not budget.is_exhausted:
        if gain is not None:
            before_s, step_time_s = step_time_s, simulated_step_time_s(problem, plan)
            if step_time_s > gain * before_s:
                break
        own = budget.share(part)
        found = walked_by_clock(problem, plan, own, seed)
        budget.charge(own)
        if not found:
            break
        plan, seed = fastest(problem, [plan, *found]), seed + 1
    return plan


def _views_of(
    problem: Problem, plan: Plan, budget: Budget, seed: int
) -> Iterator[tuple[Problem, Question, Code]]:
    """The views in which a plan is a placement, from one on that the seed says."""
    views = problem.views
    for view in (*views[seed // 2 % len(views) :], *views[: seed // 2 % len(views)]):
        question = Question.of(view, budget, seed)
        code = question.code_of(plan)
        if code is not None:
            yield view, question, code


def _best_plan(costs: SimulatedCosts) -> Plan | None:
    fitting = (entry for entry in costs.best_first() if costs.fits(entry))
    best = next(fitting, None)
    return None if best is None else costs.with_chosen_sums(best).plan


def ends_by_clock(
    view: Problem, question: Question, codes: list[Code], most_stages: float
) -> list[Code]:
    """The best placements of a walk by the clock, best first.

    Args:
        view: Of what was asked.
        question: The same for searches; its budget is charged.
        codes: Placements that fit; the walk begins at the best of them.
        most_stages: Stages that may be simulated: without a limit in time, as a measure.
    """
    budget = question.budget
    if budget.has_time_limit:
        own, changes = budget.share(CLOCK_PART), MOST_HURRIED_CHANGES
    else:
        own, changes = budget, int(min(CHANGES * most_stages, MOST_CHANGES))
    found = best_by_clock(view, question._replace(budget=own), codes, changes)
    if own is not budget:
        budget.charge(own)
    return found[:MOST_SIMULATED]
