"""What a comparison says of each planner's answer: rows, against one bound for all of them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from heterps.micro_batches.place_result import PlaceResult
from heterps.planning.comparison import ComparisonRow
from heterps.planning.curves import CurvePoint, near_best_s
from heterps_configs.documents.plan import Bound, BoundStatus
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.closed_form.bounds import lower_bound
from heterps_envs.options import has_unlike_groups, keeps_to
from heterps_envs.problem import PLAIN, Problem
from heterps_envs.step_bounds.executable import ROUNDING, least_executable_s


class Failure(NamedTuple):
    """Why a planner has no plan, and what it spent."""

    error: HeterpsError
    evaluations: int
    planning_s: float
    planning_cpu_s: float


@dataclass
class Answers:
    """What planners answered.

    Attributes:
        names: Of all that were asked, in this order.
        without: Those that choose no options, and were asked the problem without them.
        results: Of those that have a plan, by name.
        failures: Of the others.
        curves: Of those that have a plan.
    """

    names: Sequence[str]
    without: tuple[str, ...]
    results: dict[str, PlaceResult] = field(default_factory=dict)
    failures: dict[str, Failure] = field(default_factory=dict)
    curves: dict[str, tuple[CurvePoint, ...]] = field(default_factory=dict)


class Judged(NamedTuple):
    """Answers beside a bound, see `heterps.planning.comparison.Comparison`."""

    rows: tuple[ComparisonRow, ...]
    results: dict[str, PlaceResult]
    reference: float | None
    is_proven: bool
    beyond: tuple[str, ...]
    executable_s: float | None


def judge(problem: Problem, answers: Answers) -> Judged:
    """Rows in the order of the planners, and what their gaps are measured against.

    Args:
        problem: What was asked.
        answers: At least one of them a plan.
    """
    results, is_open = answers.results, problem.strategy != PLAIN
    beyond = tuple(
        name
        for name, result in results.items()
        if not keeps_to(result.plan, problem.strategy)
        or has_unlike_groups(result.problem, result.plan)
    )
    reference, is_proven = (None, False) if is_open else _reference(problem, results, beyond)
    if reference is not None and problem.job.objective == "throughput":
        results = {
            name: result if name in beyond else _judged(result, reference)
            for name, result in results.items()
        }
    asked_all = {name: result for name, result in results.items() if name not in answers.without}
    near_s = near_best_s(answers.curves)
    executable_s = _executable_s(problem, asked_all, reference)
    rows = [
        replace(
            _row(problem, name, results, answers.failures, executable_s),
            near_best_cpu_s=near_s.get(name),
        )
        for name in answers.names
    ]
    if executable_s is not None:
        # A bound of the plans that a strategy allows is none of others.
        rows = [replace(row, gap=None) if row.planner in beyond else row for row in rows]
    if reference is not None and problem.job.objective == "throughput":
        rows = [_with_closed_form_gap(row, results, beyond, reference) for row in rows]
    return Judged(tuple(rows), results, reference, is_proven, beyond, executable_s)


def _reference(
    problem: Problem, results: dict[str, PlaceResult], beyond: Sequence[str]
) -> tuple[float | None, bool]:
    """The step time that closed forms are measured against, and whether it is the proven optimum.

    None where no placement has room by the rule of planners, which their bounds are about, or a
    plan is below it, which then fits by the simulator alone.
    """
    reference, is_proven = _highest_bound(problem, results)
    formed = [
        result.estimate.closed_form_step_time_s
        for name, result in results.items()
        if name not in beyond
    ]
    least_s = min((each for each in formed if each is not None), default=math.inf)
    is_bound = math.isfinite(reference) and reference <= least_s * (1 + ROUNDING)
    return (reference, is_proven) if is_bound else (None, False)


def _highest_bound(problem: Problem, results: dict[str, PlaceResult]) -> tuple[float, bool]:
    if problem.job.objective == "throughput":
        for result in results.values():
            if result.bound.status == "proven" and result.bound.step_time_s is not None:
                return result.bound.step_time_s, True
    bounds = [result.bound.step_time_s or 0.0 for result in results.values()]
    return max([lower_bound(problem.bounding_tables), *bounds]), False


def _executable_s(
    problem: Problem, results: dict[str, PlaceResult], reference: float | None
) -> float | None:
    """No plan that the strategy allows is simulated in less; None where nothing is known.

    Args:
        problem: What was asked.
        results: Of the planners that were asked all of it.
        reference: For the closed form; None where options or sizes of micro-batches are open.
    """
    if problem.job.objective == "price" or not results:
        return None
    if reference is None:
        bounds = [result.executable.step_time_s for result in results.values()]
        return max((bound for bound in bounds if bound is not None), default=None)
    shortest_s = min(result.estimate.step_time_s for result in results.values())
    return least_executable_s(problem, shortest_s * (1 - ROUNDING)) or None


def _with_closed_form_gap(
    row: ComparisonRow, results: dict[str, PlaceResult], beyond: Sequence[str], reference: float
) -> ComparisonRow:
    if row.planner in beyond or row.planner not in results:
        return row
    shown = results[row.planner].estimate
    closed_s = shown.closed_form_step_time_s or shown.step_time_s
    return replace(row, closed_form_gap=max(0.0, closed_s / reference - 1))


def _judged(result: PlaceResult, reference: float) -> PlaceResult:
    """The result with the one bound that all planners of a comparison are measured against."""
    actual = result.estimate.closed_form_step_time_s
    gap = None if actual is None else max(0.0, actual / reference - 1)
    was_proven = result.bound.status == "proven"
    status: BoundStatus = "unknown" if gap is None else "proven" if was_proven else "bounded"
    bound = Bound(step_time_s=reference, gap=gap, status=status)
    return replace(result, bound=bound, plan=result.plan.changed(bound=bound))


def _row(
    problem: Problem,
    name: str,
    results: dict[str, PlaceResult],
    failures: dict[str, Failure],
    executable_s: float | None,
) -> ComparisonRow:
    if name in failures:
        error, used, planning_s, planning_cpu_s = failures[name]
        return ComparisonRow(
            name, None, None, None, used, planning_s, False,
            reason=str(error), planning_cpu_s=planning_cpu_s,
            refused=not isinstance(error, InfeasibleError),
        )  # fmt: skip
    result = results[name]
    shown, predicted_s = result.estimate, result.own_prediction_s
    shortest_s = min(r.estimate.step_time_s for r in results.values())
    gap: float | None
    if problem.job.objective == "price":
        cheapest = min(r.estimate.price_usd_per_million_samples for r in results.values())
        price = shown.price_usd_per_million_samples
        gap = price / cheapest - 1 if cheapest > 0 else 0.0 if price == 0 else None
    else:
        gap = shown.step_time_s / (executable_s or shortest_s) - 1
    return ComparisonRow(
        planner=name,
        throughput_samples_per_s=shown.throughput_samples_per_s,
        price_usd_per_million_samples=shown.price_usd_per_million_samples,
        gap=gap,
        evaluations=result.evaluations,
        planning_s=result.planning_s,
        feasible=True,
        step_time_s=shown.step_time_s,
        planning_cpu_s=result.planning_cpu_s,
        own_cost_s=result.own_cost.seconds if result.own_cost else None,
        own_cost_of=result.own_cost.of if result.own_cost else None,
        over_best=shown.step_time_s / shortest_s,
        own_error=None if predicted_s is None else predicted_s / shown.step_time_s - 1,
    )
