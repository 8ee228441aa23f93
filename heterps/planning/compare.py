"""All planners on one problem at an equal budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from heterps.micro_batches.place_result import PlaceResult
from heterps.planning.comparison import Comparison, ComparisonRow
from heterps.planning.curves import CurvePoint, curve_of, near_best_s
from heterps.planning.place import chooses_options, place
from heterps.planning.warm_up import warm_up
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import (
    planner_named,
    planner_names,
    predicted_training_s,
    system_names,
)
from heterps_configs.documents.plan import Bound, BoundStatus
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.closed_form.bounds import lower_bound
from heterps_envs.closed_form.usable import on_usable_devices
from heterps_envs.options import keeps_to
from heterps_envs.problem import PLAIN, Problem
from heterps_envs.step_bounds.executable import ROUNDING, least_executable_s

# Planners that train a network for every problem are left out where they would take longer.
LONGEST_TRAINING_S = 4.0
# In place of names: all planners, and all systems of papers; what papers published beside ours.
ALL, FIELD = "all", "field"
OURS = ("auto", "asymmetric", "uniform-3d")
# Beside planners of one's own: those that are compared where none is named.
USUAL = "usual"


def compare(
    problem: Problem,
    planners: Sequence[str | Planner] = (),
    *,
    evaluations: int | None = 10_000,
    seconds: float | None = None,
    cpu_seconds: float | None = None,
    seed: int = 0,
    with_all: bool = False,
    on_start: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Runs each planner once with the same budget.

    Args:
        problem: What they answer, with what its strategy leaves open. Each planner answers for
            several sizes of micro-batches where these are open, within its budget: see `place`.
        planners: Registered names, or planners of your own; by default all registered ones but
            those that train a network for every problem where that takes long; with `ALL` these
            and the systems of papers; with `FIELD` `OURS` and the systems.
        evaluations: Placements that each may evaluate.
        seconds: Wall-clock seconds that each may take.
        cpu_seconds: Processor seconds that each may take.
        seed: Of planners that draw random numbers.
        with_all: By default none is left out.
        on_start: Called with each planner's name, to show progress.

    Raises:
        UnknownNameError: Before any planner runs.
        HeterpsError: No planner found a plan; the text is the first planner's reason.
    """
    limits = (evaluations, seconds, cpu_seconds)
    is_all = ALL in planners
    is_usual = not planners or USUAL in planners
    left_out = _too_slow(problem, *limits) if (is_usual or is_all) and not with_all else ()
    chosen = list(planners)
    own = [entry for entry in planners if entry not in (ALL, FIELD, USUAL)]
    if is_all:
        own = [entry for entry in own if not isinstance(entry, str)]
        chosen = [*planner_names(), *system_names(), *own]
    elif FIELD in planners:
        chosen = list(dict.fromkeys([*OURS, *system_names(), *own]))
    elif is_usual:
        chosen = [*planner_names(), *own]
    objects = [
        planner_named(entry, seed=seed) if isinstance(entry, str) else entry
        for entry in chosen
        if entry not in left_out
    ]
    names = [planner.name for planner in objects]
    if problem.strategy.is_plain:
        problem = on_usable_devices(problem)
    without = tuple(each.name for each in objects if not chooses_options(each))
    without = () if problem.strategy.is_plain else without
    results: dict[str, PlaceResult] = {}
    failures: dict[str, _Failure] = {}
    curves: dict[str, tuple[CurvePoint, ...]] = {}
    for name, planner in zip(names, objects, strict=True):
        on_start(name)
        warm_up(planner, problem.job.objective)
        budget = Budget(*limits)
        try:
            asked = problem.plain if name in without else problem
            results[name] = place(asked, planner, budget=budget)
            curves[name] = curve_of(results[name], budget.finds)
        except HeterpsError as error:
            failures[name] = _Failure(
                error, budget.evaluations_used, budget.seconds_used, budget.cpu_seconds_used
            )
    if not results:
        raise next(iter(failures.values())).error
    is_open = problem.strategy != PLAIN
    reference, is_proven = (None, False) if is_open else _reference(problem, results)
    beyond = tuple(n for n, r in results.items() if not keeps_to(r.plan, problem.strategy))
    if reference is not None and problem.job.objective == "throughput":
        results = {
            name: result if name in beyond else _judged(result, reference)
            for name, result in results.items()
        }
    asked_all = {name: result for name, result in results.items() if name not in without}
    near_s, executable_s = near_best_s(curves), _executable_s(problem, asked_all, reference)
    rows = [
        replace(
            _row(problem, name, results, failures, executable_s), near_best_cpu_s=near_s.get(name)
        )
        for name in names
    ]
    if executable_s is not None:
        # A bound of the plans that a strategy allows is none of others.
        rows = [replace(row, gap=None) if row.planner in beyond else row for row in rows]
    if reference is not None and problem.job.objective == "throughput":
        rows = [_with_closed_form_gap(row, results, beyond, reference) for row in rows]
    grouped = {each.name for each in objects if getattr(each, "makes_groups", False)}
    alone = tuple(name for name in without if name not in grouped)
    return Comparison(
        problem, tuple(rows), reference, is_proven, results, left_out, curves, alone, beyond,
        executable_s,
    )  # fmt: skip


class _Failure(NamedTuple):
    """Why a planner has no plan, and what it spent."""

    error: HeterpsError
    evaluations: int
    planning_s: float
    planning_cpu_s: float


def _too_slow(
    problem: Problem, evaluations: int | None, seconds: float | None, cpu_seconds: float | None
) -> tuple[str, ...]:
    """Planners that would train for longer than a person waits."""
    times = [limit for limit in (seconds, cpu_seconds) if limit is not None]
    if min(times, default=math.inf) <= LONGEST_TRAINING_S:
        return ()
    layers, most = problem.profile.num_layers, math.inf if evaluations is None else evaluations
    return tuple(
        name
        for name in planner_names()
        if predicted_training_s(name, layers, most) > LONGEST_TRAINING_S
    )


def _reference(problem: Problem, results: dict[str, PlaceResult]) -> tuple[float, bool]:
    """The step time that gaps are measured against, and whether it is the proven optimum."""
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
    failures: dict[str, _Failure],
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
    if problem.job.objective == "price":
        cheapest = min(r.estimate.price_usd_per_million_samples for r in results.values())
        price = shown.price_usd_per_million_samples
        gap = price / cheapest - 1 if cheapest > 0 else 0.0
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
