"""The best plans with other sizes of micro-batches: the same stages on the same devices.

How good a size is nobody knows before it was searched, and there is time to search few. What the
stages of a good plan take with another size the simulator says in milliseconds.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence

from heterps.micro_batches.one_size import finished_result, place_one_size
from heterps.micro_batches.outlooks import best_of_each, bound_of, cost_of, rank
from heterps.micro_batches.place_result import PlaceResult
from heterps_agents.asymmetric.weave import (
    plan_of_weave,
    weave_of_plan,
    with_micro_batches,
)
from heterps_agents.interface.patient import PatientPlanner
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.placement import placement_of
from heterps_envs.options import keeps_to
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.notes import can_run
from heterps_envs.simulator.simulate import simulated_step_time_s

# So many of the best results are carried over, to sizes at most so many times as large or small.
MOST_CARRIED, MOST_TIMES = 2, 8
# Plans are finished that take so many times what the best takes at most.
NEAR_CARRIED = 1.15


def with_carried(
    answers: Sequence[PlaceResult],
    asked: Sequence[Problem],
    planner: PatientPlanner,
    budget: Budget,
) -> list[PlaceResult]:
    """The results, and plans of the best of them with other sizes, where these are better there.

    Args:
        answers: At most one for each size; at least one.
        asked: The problem with each size.
        planner: Whose name plans carry.
        budget: Its end ends this.
    """
    found = {each.plan.job.micro_batch_size: each for each in answers}
    best = sorted(answers, key=rank)[:MOST_CARRIED]
    if best[0].problem.job.objective == "price":
        return list(answers)
    for result in best:
        most_s, own = NEAR_CARRIED * cost_of(best[0]), result.plan.job.micro_batch_size
        for problem in asked:
            size = problem.job.micro_batch_size
            times = max(size, own) / min(size, own)
            if budget.is_exhausted or not 1 < times <= MOST_TIMES or bound_of(problem) > most_s:
                continue
            plan = carried(result, problem)
            least_s = min(most_s, cost_of(found[size])) if size in found else most_s
            if plan is None or simulated_step_time_s(problem, plan) >= least_s:
                continue
            other = finished_result(problem, plan, planner, budget)
            if other is not None:
                found[size] = min(found.get(size, other), other, key=rank)
    return list(found.values())


def with_searched(
    answers: Sequence[PlaceResult],
    asked: Sequence[Problem],
    planner: PatientPlanner,
    budget: Budget,
) -> list[PlaceResult]:
    """The results with what is carried over; a size that is the best only then is searched, too.

    Args:
        answers: Of the sizes that were searched, without a limit in time.
        asked: The problem with each size.
        planner: Who searched them.
        budget: Its end ends this.
    """
    searched = {each.plan.job.micro_batch_size for each in answers}
    found = with_carried(answers, asked, planner, budget)
    while not budget.is_exhausted:
        best = min(found, key=rank)
        size = best.plan.job.micro_batch_size
        if size in searched:
            break
        searched.add(size)
        with contextlib.suppress(InfeasibleError):
            found.append(place_one_size(best.problem, planner, budget))
        found = with_carried(best_of_each(found), asked, planner, budget)
    return found


def carried(result: PlaceResult, problem: Problem) -> Plan | None:
    """The plan of a result for a problem with another size; None where it has none.

    Args:
        result: With one size.
        problem: The same one with another size.
    """
    plan = _placed(result, problem) or _woven(result.plan, problem)
    if plan is None or not keeps_to(plan, problem.strategy) or not can_run(problem, plan):
        return None
    return plan


def _placed(result: PlaceResult, problem: Problem) -> Plan | None:
    """Of a plan that is a placement of some view."""
    for before, after in zip(result.problem.views, problem.views, strict=True):
        placement = placement_of(before, result.plan)
        if placement is not None:
            name, seed = result.plan.planner, result.plan.seed
            with contextlib.suppress(InfeasibleError):
                return bound_plan(after, placement, planner=name, seed=seed)
    return None


def _woven(plan: Plan, problem: Problem) -> Plan | None:
    """Of a plan of lanes: their shares stay what they are, as nearly as can be."""
    weave = weave_of_plan(plan)
    weave = weave and with_micro_batches(weave, problem.job.num_micro_batches)
    return weave and plan_of_weave(weave, plan.changed_unchecked(job=problem.job))
