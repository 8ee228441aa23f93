"""What comparing planners on one problem gives: a row for each, and what they are held against."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from heterps.micro_batches.place_result import PlaceResult
from heterps.planning.curves import CurvePoint
from heterps_configs.documents.numbers import Amount, NotNegative, Ratio
from heterps_envs.problem import Problem


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
            cheapest found, minus 1; None of what costs more than nothing, where that was found.
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
    throughput_samples_per_s: Amount | None
    price_usd_per_million_samples: Amount | None
    gap: Ratio | None
    evaluations: NotNegative
    planning_s: Amount
    feasible: bool
    step_time_s: Amount | None = None
    reason: str = ""
    planning_cpu_s: Amount = 0.0
    refused: bool = False
    near_best_cpu_s: Amount | None = None
    own_cost_s: Amount | None = None
    own_cost_of: str | None = None
    closed_form_gap: Ratio | None = None
    over_best: Amount | None = None
    own_error: Ratio | None = None


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
        without_options: Planners with a plan that place each stage on one device that keeps all,
            although a strategy allows more.
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
