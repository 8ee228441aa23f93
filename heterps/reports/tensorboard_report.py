"""TensorBoard of a comparison: scalars, hparams, the timeline as a figure, a summary as text."""

from __future__ import annotations

from pathlib import Path

from heterps.planning.compare import Comparison, ComparisonRow
from heterps.planning.place import PlaceResult
from heterps.reports.figures import timeline_figure
from heterps.reports.folding import folded_estimate, folded_title
from heterps_configs.outputs import file_name_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate


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
    return folder


def comparison_folder(problem: Problem, log_directory: Path) -> Path:
    """Where the runs of a comparison lie; whatever a model or a cluster is called, inside."""
    model, cluster = file_name_of(problem.profile.name), file_name_of(problem.cluster.name)
    return log_directory / model / cluster


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
    job = comparison.problem.job
    # Few settings, because TensorBoard shows only the first five columns unasked.
    settings: dict[str, bool | str | float | int] = {
        "planner": row.planner,
        "model": comparison.problem.profile.name,
        "cluster": comparison.problem.cluster.name,
        "batch": f"{job.global_batch_size} in {job.micro_batch_size}s",
        "goal": f"{job.objective}, {job.schedule}",
    }
    # `add_hparams` would open a second run for the same planner; its parts go into this one.
    for summary in hparams(settings, known):  # type: ignore[no-untyped-call]
        writer.add_summary(summary)
    writer.add_text("placement/summary", result.summary() if result else row.reason, 0)
    if result is not None:
        detailed = estimate(comparison.problem, result.plan, with_timeline=True)
        folded = folded_estimate(comparison.problem, result.plan, detailed)
        title = f"{result.plan.model} on {result.plan.cluster}, planner {row.planner}"
        title = folded_title(title, result.plan)
        writer.add_figure("placement/timeline", timeline_figure(folded, title), 0, close=False)
    writer.close()
