"""TensorBoard of a comparison: scalars, hparams, the timeline as a figure, a summary as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from heterps.planning.compare import Comparison, ComparisonRow
from heterps.planning.curves import CurvePoint
from heterps.planning.place_result import PlaceResult
from heterps.reports.figures import timeline_figure
from heterps.reports.folding import folded_estimate, folded_title
from heterps.reports.planner_figures import curves_figure
from heterps.reports.ways import plan_ways_text, recompute_share
from heterps_configs.outputs import file_name_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

if TYPE_CHECKING:
    from heterps_agents.training.board import Board

# Beside the runs of single planners.
ALL_PLANNERS = "all-planners"


def write_comparison(comparison: Comparison, log_directory: Path) -> Path:
    """Writes one TensorBoard run for each planner.

    Args:
        comparison: What `heterps.planning.compare.compare` returned.
        log_directory: The runs lie in `<log_directory>/<model>/<cluster>/<planner>`.

    Returns:
        The folder that holds the runs.
    """
    problem = comparison.problem
    folder = comparison_folder(problem, log_directory)
    for row in comparison.rows:
        result = comparison.results.get(row.planner)
        _write_row(comparison, row, result, folder / file_name_of(row.planner))
    _write_curves(comparison, folder / ALL_PLANNERS)
    return folder


def comparison_folder(problem: Problem, log_directory: Path) -> Path:
    """Where the runs of a comparison lie; whatever a model or a cluster is called, inside."""
    model, cluster = file_name_of(problem.profile.name), file_name_of(problem.cluster.name)
    return log_directory / model / cluster


def _write_curves(comparison: Comparison, folder: Path) -> None:
    """A run of the picture that holds all planners."""
    from heterps_agents.training.board import Board

    writer = Board(folder, replaces=True)
    figure = curves_figure(comparison)
    writer.add_figure("placement/best_over_cpu_seconds", figure, 0, close=False)
    writer.close()


def _add_curve(writer: Board, points: Sequence[CurvePoint], planning_cpu_s: float) -> None:
    """Best cost over processor milliseconds, which are the steps.

    TensorBoard draws straight lines from point to point: so there is a point in front of each fall.
    """
    shown: dict[int, float] = {}
    for before, point in pairwise(points):
        shown[_milliseconds(before.cpu_seconds)] = before.cost
        shown.setdefault(_milliseconds(point.cpu_seconds) - 1, before.cost)
    last = points[-1]
    for seconds in (last.cpu_seconds, planning_cpu_s):
        shown[_milliseconds(seconds)] = last.cost
    for step, cost in sorted(shown.items()):
        # As "relative" time it reads in seconds.
        writer.add_scalar("placement/best_cost", cost, step, walltime=step / 1e3)


def _milliseconds(seconds: float) -> int:
    return round(1e3 * seconds)


def _write_row(
    comparison: Comparison, row: ComparisonRow, result: PlaceResult | None, folder: Path
) -> None:
    from heterps_agents.training.board import Board

    # After the board, which keeps TensorBoard's own warnings from users.
    from torch.utils.tensorboard.summary import hparams  # isort: skip

    metrics = {
        "placement/throughput_samples_per_s": row.throughput_samples_per_s,
        "placement/step_time_s": row.step_time_s,
        "placement/price_usd_per_million_samples": row.price_usd_per_million_samples,
        "placement/gap": row.gap,
        "placement/planning_s": row.planning_s,
        "placement/planning_cpu_s": row.planning_cpu_s,
        "placement/evaluations": float(row.evaluations),
    }
    known = {name: value for name, value in metrics.items() if value is not None}
    writer = Board(folder, replaces=True)
    for name, value in known.items():
        writer.add_scalar(name, value, 0)
    job = comparison.problem.job if result is None else result.plan.job
    way = "" if result is None else plan_ways_text(result.plan)
    # Few settings, because TensorBoard shows only the first five columns unasked.
    settings: dict[str, bool | str | float | int] = {
        "planner": row.planner,
        "model": comparison.problem.profile.name,
        "cluster": comparison.problem.cluster.name,
        "batch": f"{job.global_batch_size} in {job.micro_batch_size}s",
        "goal": f"{job.objective}, {job.schedule}",
    }
    if comparison.bound_step_time_s is None:
        settings = {"planner": row.planner, "way": way or "plain", **settings}
    # `add_hparams` would open a second run for the same planner; its parts go into this one.
    for summary in hparams(settings, known):  # type: ignore[no-untyped-call]
        writer.add_summary(summary)
    writer.add_text("placement/summary", result.summary() if result else row.reason, 0)
    if comparison.bound_step_time_s is None and result is not None:
        said = f"micro-batches of {job.micro_batch_size}; {way or 'one device for each stage'}"
        writer.add_text("placement/way", said, 0)
    points = comparison.curves.get(row.planner)
    if points:
        _add_curve(writer, points, row.planning_cpu_s)
    if result is not None:
        problem = result.problem
        detailed = estimate(problem, result.plan, with_timeline=True)
        folded = folded_estimate(problem, result.plan, detailed)
        shares = recompute_share(problem, result.plan)
        title = f"{result.plan.model} on {result.plan.cluster}, planner {row.planner}"
        title = folded_title(title, result.plan)
        writer.add_figure(
            "placement/timeline", timeline_figure(folded, title, shares), 0, close=False
        )
    writer.close()
