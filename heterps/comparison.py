"""All planners on one problem at an equal budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from heterps.placing import PlaceResult, place
from heterps_agents.planner import Budget, Planner
from heterps_agents.registry import planner_named, planner_names
from heterps_configs.errors import InfeasibleError
from heterps_envs.bounds import lower_bound
from heterps_envs.problem import Problem


@dataclass(frozen=True)
class ComparisonRow:
    """One planner's result. Numbers are None where it found no feasible plan.

    Attributes:
        step_time_s: The simulator's.
        gap: Closed-form step time over the best lower bound, minus 1; for the price objective,
            price over the cheapest found, minus 1.
        reason: Why there is no plan.
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


@dataclass(frozen=True)
class Comparison:
    """What `heterps compare` shows.

    Attributes:
        bound_step_time_s: What gaps are measured against; `bound_is_proven` when the exact solver
            finished, so that a gap of 0 is the optimum of the closed form.
        results: By planner, for figures and reports.
    """

    problem: Problem
    rows: tuple[ComparisonRow, ...]
    bound_step_time_s: float | None
    bound_is_proven: bool
    results: dict[str, PlaceResult] = field(default_factory=dict)

    def to_mapping(self) -> dict[str, Any]:
        """The JSON contract of `heterps compare --json`."""
        return {
            "model": self.problem.profile.name,
            "cluster": self.problem.cluster.name,
            "job": self.problem.job.model_dump(mode="json"),
            "bound_step_time_s": self.bound_step_time_s,
            "bound_is_proven": self.bound_is_proven,
            "rows": [asdict(row) for row in self.rows],
        }


def compare(
    problem: Problem,
    planners: Sequence[str | Planner] = (),
    *,
    evaluations: int | None = 10_000,
    seconds: float | None = None,
    seed: int = 0,
    on_start: Callable[[str], None] = lambda name: None,
) -> Comparison:
    """Runs each planner once with the same budget.

    Args:
        problem: What they answer.
        planners: Registered names, or planners of your own; all registered ones by default.
        evaluations: Placements that each may evaluate.
        seconds: Wall-clock seconds that each may take.
        seed: Of planners that draw random numbers.
        on_start: Called with each planner's name, to show progress.

    Raises:
        UnknownNameError: Before any planner runs.
        InfeasibleError: No planner found a plan; the text is the first planner's reason.
    """
    chosen = list(planners) or [name for name in planner_names() if name != "auto"]
    objects = [planner_named(p, seed=seed) if isinstance(p, str) else p for p in chosen]
    names = [planner.name for planner in objects]
    results: dict[str, PlaceResult] = {}
    failures: dict[str, tuple[str, Budget]] = {}
    for name, planner in zip(names, objects, strict=True):
        on_start(name)
        budget = Budget(evaluations, seconds)
        try:
            results[name] = place(problem, planner, budget=budget)
        except InfeasibleError as error:
            failures[name] = (str(error), budget)
    if not results:
        raise InfeasibleError(next(iter(failures.values()))[0])
    reference, is_proven = _reference(problem, results)
    rows = [_row(problem, name, results, failures, reference) for name in names]
    return Comparison(problem, tuple(rows), reference, is_proven, results)


def _reference(problem: Problem, results: dict[str, PlaceResult]) -> tuple[float, bool]:
    """The step time that gaps are measured against, and whether it is the proven optimum."""
    if problem.job.objective == "throughput":
        for result in results.values():
            if result.bound.status == "proven" and result.bound.step_time_s is not None:
                return result.bound.step_time_s, True
    return lower_bound(problem.tables), False


def _row(
    problem: Problem,
    name: str,
    results: dict[str, PlaceResult],
    failures: dict[str, tuple[str, Budget]],
    reference: float,
) -> ComparisonRow:
    if name in failures:
        reason, budget = failures[name]
        used, seconds = budget.evaluations_used, budget.seconds_used
        return ComparisonRow(name, None, None, None, used, seconds, False, reason=reason)
    result = results[name]
    shown = result.estimate
    if problem.job.objective == "price":
        cheapest = min(r.estimate.price_usd_per_million_samples for r in results.values())
        price = shown.price_usd_per_million_samples
        gap = price / cheapest - 1 if cheapest > 0 else 0.0
    else:
        gap = max(0.0, (shown.closed_form_step_time_s or shown.step_time_s) / reference - 1)
    return ComparisonRow(
        planner=name,
        throughput_samples_per_s=shown.throughput_samples_per_s,
        price_usd_per_million_samples=shown.price_usd_per_million_samples,
        gap=gap,
        evaluations=result.evaluations,
        planning_s=result.planning_s,
        feasible=True,
        step_time_s=shown.step_time_s,
    )
