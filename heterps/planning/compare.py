"""All planners on one problem at an equal budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple

from heterps.micro_batches.place_result import PlaceResult
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


@dataclass(frozen=True)
class ComparisonRow:
    """One planner's result. Numbers are None where it found no feasible plan.

    Attributes:
        evaluations: Placements whose cost it computed, before the simulator chose among its finds.
            The exact solver, `auto` and `asymmetric` with it, counts transitions, and no budget of
            evaluations binds it.
        planning_s: Wall-clock seconds.
        planning_cpu_s: Processor seconds of this process. Neither counts imports and compilation.
        refused: It did not try: the budget is too small for it, or it lacks a policy.
        step_time_s: The simulator's.
        gap: Simulated step time over the bound of all plans that can be run, minus 1, or, where
            no planner knows one, over the shortest of all; for the price objective, price over the
            cheapest found, minus 1.
        closed_form_gap: Closed-form step time over the best lower bound of such times, minus 1;
            None where options or sizes are open, and where the price counts.
        reason: Why there is no plan.
        near_best_cpu_s: Processor seconds until its best was within 1 % of the best of all planners
            (`heterps.planning.curves`); None where it never was.
        own_cost_s: What a paper's method itself predicts: of a step, or of a micro-batch on its
            slowest stage, as `own_cost_of` says.
        over_best: Simulated step time over the shortest of all.
        own_error: What the planner itself expects of the step (of a paper's method its own cost,
            of others the closed form) over the simulated step, minus 1.
    """

    planner: str
    throughput_samples_per_s: float | None
    price_usd_per_million_samples: float | None
    gap: float | None
    evaluations: int
    planning_s: float
    feasible: bool
    step_time_s: float | None = None
    reason: str = ""
    planning_cpu_s: float = 0.0
    refused: bool = False
    near_best_cpu_s: float | None = None
    own_cost_s: float | None = None
    own_cost_of: str | None = None
    closed_form_gap: float | None = None
    over_best: float | None = None
    own_error: float | None = None


@dataclass(frozen=True)
class Comparison:
    """What `heterps compare` shows.

    Attributes:
        bound_step_time_s: What closed-form gaps are measured against; `bound_is_proven` when the
            exact solver finished, so that a gap of 0 is the optimum of the closed form. None where
            planners choose options or micro-batch sizes.
        executable_step_time_s: What gaps are measured against; None: the best of all.
        results: By planner, for figures and reports.
        left_out: Planners that would have taken long, and that nobody asked for.
        without_options: Planners that place each stage on one device that keeps all, although a
            strategy allows more.
        beyond_strategy: Planners whose plans are carried out in ways that the strategy does not
            allow the others, as even plans may be. Where others are measured against a bound,
            these have no gap.
        curves: By planner, its best cost over the processor seconds that it had spent.
    """

    problem: Problem
    rows: tuple[ComparisonRow, ...]
    bound_step_time_s: float | None
    bound_is_proven: bool
    results: dict[str, PlaceResult] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()
    curves: dict[str, tuple[CurvePoint, ...]] = field(default_factory=dict)
    without_options: tuple[str, ...] = ()
    beyond_strategy: tuple[str, ...] = ()
    executable_step_time_s: float | None = None

    def __repr__(self) -> str:
        """One line: the planners, the best first."""
        found = [row for row in self.rows if row.throughput_samples_per_s is not None]
        found.sort(key=lambda row: -(row.throughput_samples_per_s or 0.0))
        rows = [f"{row.planner} {row.throughput_samples_per_s:.4g} samples/s" for row in found]
        names = f"{self.problem.profile.name} on {self.problem.cluster.name}"
        return f"Comparison({names}: {', '.join(rows)})"

    def to_mapping(self) -> dict[str, Any]:
        """The JSON contract of `heterps compare --json`."""
        return {
            "model": self.problem.profile.name,
            "cluster": self.problem.cluster.name,
            "job": self.problem.job.model_dump(mode="json"),
            "bound_step_time_s": self.bound_step_time_s,
            "bound_is_proven": self.bound_is_proven,
            "executable_step_time_s": self.executable_step_time_s,
            "rows": [asdict(row) for row in self.rows],
            "left_out": list(self.left_out),
            "beyond_strategy": list(self.beyond_strategy),
            "curves": {
                name: [point._asdict() for point in points] for name, points in self.curves.items()
            },
        }


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
