"""Walks on the simulator from a plan: over its stages as a chain, or lane by lane."""

from __future__ import annotations

import math
import time

from heterps_agents.asymmetric.candidates import groups_of, memories_of
from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.judged import Judge, Judged
from heterps_agents.asymmetric.moves import Moves
from heterps_agents.asymmetric.weave import weave_of_plan
from heterps_agents.auto.lane_walk import Walk
from heterps_agents.auto.others import better
from heterps_agents.finishing.simulated_costs import SimulatedCosts
from heterps_agents.finishing.simulated_walk import walk
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_configs.documents.plan import Plan
from heterps_envs.arrays import Code
from heterps_envs.closed_form.placement import encode, placement_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import simulated_step_time_s

# Stages of all plans on a walk without a limit in time, replicas counted.
MOST_WALKED = 2000
# A walk needs time for so many simulations.
LEAST_STEPS = 8
# Lanes are walked where there are so many stages at most: listing their changes takes longer than
# simulating one elsewhere.
MOST_STAGES = 24
# Of the memory that the rule of planners leaves, what lanes may take: that rule is careful.
ROOM = 1.3


def walked(problem: Problem, plan: Plan, budget: Budget, seed: int) -> Plan:
    """A plan, or a better one that lies on a walk from it.

    A walk takes all the time of a budget, if there is something left to simulate. Without a limit
    in time it ends where its plans have `MOST_WALKED` stages together, and walks no lanes. Else
    even seeds walk over the stages of a chain, all replicas of a stage alike; odd ones, and those
    that begin at a plan of other pipelines, lane by lane.

    Args:
        problem: What was asked.
        plan: One that fits.
        budget: With a limit in time, or without one.
        seed: Of the walk.
    """
    if problem.job.objective == "price" or problem.job.schedule == "interleaved":
        return plan
    if not budget.has_time_limit:
        steps = MOST_WALKED / len(plan.stages)
        found = _over_stages(problem, plan, budget, seed, steps)
        return plan if found is None else better(problem, plan, found) or plan
    start, cost = time.process_time(), simulated_step_time_s(problem, plan)
    one_s = time.process_time() - start
    steps = budget.seconds_left / max(one_s, 1e-9)
    if steps < LEAST_STEPS:
        return plan
    found = _over_stages(problem, plan, budget, seed, steps) if seed % 2 == 0 else None
    if found is None:
        found = _over_lanes(problem, plan.changed(predicted_step_time_s=cost), budget, seed)
    return plan if found is None else better(problem, plan, found) or plan


def _over_stages(
    problem: Problem, plan: Plan, budget: Budget, seed: int, steps: float
) -> Plan | None:
    """None for a plan that is no placement of any view."""
    views = problem.views
    for view in (*views[seed // 2 % len(views) :], *views[: seed // 2 % len(views)]):
        question = Question.of(view, budget, seed)
        code = _code(view, question, plan)
        if code is None:
            continue
        costs = SimulatedCosts(view, question, plan.planner)
        costs.allow(math.inf if budget.has_time_limit else MOST_WALKED)
        walk(costs, question, costs.add(code), steps)
        fitting = (entry for entry in costs.best_first() if costs.fits(entry))
        best = next(fitting, None)
        return None if best is None else costs.with_chosen_sums(best).plan
    return None


def _code(view: Problem, question: Question, plan: Plan) -> Code | None:
    placement = placement_of(view, plan)
    if placement is None:
        return None
    try:
        code = encode(placement, question.options)
    except ValueError:  # an option that another one dominates here
        return None
    return code if math.isfinite(question.cost(code)) else None


def _over_lanes(problem: Problem, plan: Plan, budget: Budget, seed: int) -> Plan | None:
    """None for a plan that is not made of blocks of lanes."""
    weave = weave_of_plan(plan) if len(plan.stages) <= MOST_STAGES else None
    if weave is None:
        return None
    moves = Moves(
        Estimates(problem, ROOM), groups_of(problem, plan), memories_of(problem),
        shards=problem.strategy.shard_state == "auto",
    )  # fmt: skip
    assert plan.predicted_step_time_s is not None, "it was simulated"
    known = Judged(plan.predicted_step_time_s, plan)
    best = Walk(Judge(problem, budget), moves, seed).best_from(weave, known, budget)
    return None if best is known else best.plan
