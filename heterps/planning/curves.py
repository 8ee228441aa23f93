"""Curves of a planner's best cost over the processor seconds that it spent."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from heterps.micro_batches.place_result import PlaceResult
from heterps_agents.interface.finds import Find
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.placement import closed_form_of_plan_s, placement_of
from heterps_envs.problem import Problem

# How far above the best of all planners a planner counts as there.
NEAR = 0.01
SECONDS_PER_HOUR = 3600


class CurvePoint(NamedTuple):
    """Where a planner's best cost fell.

    Attributes:
        cpu_seconds: Of the process since it began; without imports and compiling.
        evaluations: Placements that it had costed by then.
        cost: By the closed form: seconds of a step or, for the objective price, US dollars for a
            million samples.
    """

    cpu_seconds: float
    evaluations: int
    cost: float


def curve_of(result: PlaceResult, finds: Iterable[Find]) -> tuple[CurvePoint, ...]:
    """The best cost so far, falling, from the first find to the plan that was answered.

    A planner that lets the simulator choose may answer with a plan that costs more by the closed
    form than the best one it found: then the curve ends below the plan.

    Args:
        result: Of the planner.
        finds: Of its budget.
    """
    problem, points = result.problem, list[CurvePoint]()
    costs = [(find, _cost_of_find(problem, find)) for find in finds]
    last = Find(result.planning_cpu_s, result.evaluations, 0.0, None)
    for find, cost in [*costs, (last, plan_cost(result))]:
        if cost is not None and (not points or cost < points[-1].cost):
            points.append(CurvePoint(find.cpu_seconds, find.evaluations, cost))
    return tuple(points)


def plan_cost(result: PlaceResult) -> float:
    """Of a planner's answer, in the unit of curves; simulated where it has no closed form."""
    shown = result.estimate
    step_s = shown.closed_form_step_time_s
    return _in_unit(result.problem, result.plan, shown.step_time_s if step_s is None else step_s)


def near_best_s(curves: Mapping[str, Sequence[CurvePoint]]) -> dict[str, float]:
    """Processor seconds until each planner was within `NEAR` of the best of all.

    Those that never were are left out.
    """
    least = min((points[-1].cost for points in curves.values() if points), default=0.0)
    reached = {
        name: [point.cpu_seconds for point in points if point.cost <= least * (1 + NEAR)]
        for name, points in curves.items()
    }
    return {name: seconds[0] for name, seconds in reached.items() if seconds}


def _cost_of_find(problem: Problem, find: Find) -> float | None:
    """None where no devices can be found for it."""
    if find.plan is None:
        return find.cost
    try:
        plan = find.plan()
    except InfeasibleError:
        return None
    own = problem if plan.job == problem.job else replace(problem, job=plan.job)
    placement = placement_of(own, plan)
    if placement is None:
        return _price_in_unit(own, find.cost)
    return _in_unit(own, plan, closed_form_of_plan_s(own, plan, placement))


def _in_unit(problem: Problem, plan: Plan, step_s: float) -> float:
    if problem.job.objective != "price":
        return step_s
    devices = (problem.device_named[name] for name in plan.devices)
    return _price_in_unit(problem, step_s * sum(each.price_usd_per_hour for each in devices))


def _price_in_unit(problem: Problem, cost: float) -> float:
    """From what searches minimise: US dollars per hour times seconds of a step."""
    if problem.job.objective != "price":
        return cost
    return cost * 1e6 / problem.job.global_batch_size / SECONDS_PER_HOUR
