"""Walks on the simulator from a plan: over its stages as a chain, or lane by lane."""

from __future__ import annotations

import time

from heterps_agents.asymmetric.candidates import groups_of, memories_of
from heterps_agents.asymmetric.estimates import Estimates
from heterps_agents.asymmetric.judged import Judge, Judged
from heterps_agents.asymmetric.moves import Moves
from heterps_agents.asymmetric.weave import weave_of_plan
from heterps_agents.auto.choices import better
from heterps_agents.auto.lane_walk import Walk
from heterps_agents.finishing.stage_walk import can_walk, walked_over_stages
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
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
    if not can_walk(problem):
        return plan
    if not budget.has_time_limit:
        found = walked_over_stages(problem, plan, budget, seed, MOST_WALKED)
        return plan if found is None else better(problem, plan, found) or plan
    start, cost = time.process_time(), simulated_step_time_s(problem, plan)
    one_s = time.process_time() - start
    steps = budget.seconds_left / max(one_s, 1e-9)
    if steps < LEAST_STEPS:
        return plan
    most_stages = steps * len(plan.stages)
    found = walked_over_stages(problem, plan, budget, seed, most_stages) if seed % 2 == 0 else None
    if found is None:
        found = _over_lanes(problem, plan.changed(predicted_step_time_s=cost), budget, seed)
    return plan if found is None else better(problem, plan, found) or plan


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
