"""What short annealings find from a finished plan: among the ways that its stages have, more moves.

With all options of a large cluster a search has thousands of candidates for each stage; with those
that a good plan uses it has few, and goes on from there: some tenths of a second.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_agents.search.annealing import polish
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Code
from heterps_envs.closed_form.placement import decode, encode, placement_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.simulate import feasible_step_time_s, simulated_step_time_s

SEEDS, EVALUATIONS = (0, 1), 10_000


def ways_of(plan: Plan, asked: Strategy) -> Strategy:
    """What a planner may choose for stages to be carried out as the plan's are.

    Args:
        plan: The plan.
        asked: What may be chosen at all: where all layers must be computed again, they are.
    """
    again = "full" if asked.recompute == "full" else "auto"
    return Strategy(
        tensor_parallel=tuple(sorted({stage.degree for stage in plan.stages})),
        recompute=again if any(stage.recompute_layers for stage in plan.stages) else "never",
        offload="auto" if any(stage.offloaded_layers for stage in plan.stages) else "never",
        shard_state="auto" if plan.sharded_state else "never",
    )


def best_near(
    problem: Problem,
    plan: Plan,
    budget: Budget,
    *,
    is_quick: bool = False,
    seeds: Sequence[int] = SEEDS,
) -> tuple[Plan, float]:
    """The plan, or one found from it that is faster in the simulator and fits; and its seconds.

    Args:
        problem: What was asked; of its strategy only what the plan uses counts.
        plan: For the same job; it may have been made for a cluster with fewer devices.
        budget: What is charged.
        is_quick: One annealing, with the fastest links inside classes.
        seeds: Of the annealings.
    """
    problem = replace(problem, strategy=ways_of(plan, problem.strategy))
    best, best_s = plan, simulated_step_time_s(problem, plan)
    # With the slowest links inside classes, and with the fastest; which ones the simulator knows.
    views = [problem] if problem.views[-1] is problem else [problem, problem.views[-1]]
    for view in views[-1:] if is_quick else views:
        for found in _found(view, plan, budget, seeds[:1] if is_quick else seeds):
            if simulated_step_time_s(problem, found) >= best_s or not can_run(problem, found):
                continue
            chosen = choose_reduce(problem, found)
            seconds = feasible_step_time_s(problem, chosen)
            if seconds < best_s:
                best, best_s = chosen, seconds
    return best, best_s


def _found(view: Problem, plan: Plan, budget: Budget, seeds: Sequence[int]) -> list[Plan]:
    placement = placement_of(view, plan)
    if placement is None:
        return []
    try:
        question = Question.of(view, budget)
        start = encode(placement, question.options)
    except ValueError:  # no such group in this view, or an option that another one dominates
        return []
    if not math.isfinite(question.cost(start)):
        return []
    codes: dict[bytes, Code] = {}
    for seed in seeds:
        left = budget.evaluations_left
        evaluations = EVALUATIONS if left is None else min(EVALUATIONS, left)
        if evaluations == 0:
            break
        budget.spend(evaluations)
        code = polish(start, question.kernel, evaluations, seed, question.goal)
        codes[code.tobytes()] = code
    plans = []
    for code in codes.values():
        try:
            placed = decode(code, question.options)
            plans.append(bound_plan(view, placed, planner=plan.planner, seed=plan.seed))
        except HeterpsError:  # no node has room for one of its groups
            continue
    return plans
