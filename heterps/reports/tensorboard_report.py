"""TensorBoard of a comparison: two pictures and a curve first, then all of each planner.

The step is the processor time of the planner in microseconds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from heterps.micro_batches.place_result import PlaceResult
from heterps.planning.comparison import Comparison, ComparisonRow
from heterps.planning.strategies import OPEN
from heterps.reports.figures import plan_timeline_figure
from heterps.reports.planner_figures import curves_figure, throughput_figure
from heterps.reports.ways import plan_ways_text
from heterps_agents.boards.layout import Chart, Layout
from heterps_configs.documents.job import Job
from heterps_configs.outputs import file_name_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

if TYPE_CHECKING:
    pass

# Beside the runs of single planners.
ALL_PLANNERS = "all-planners"
LAYOUT = Layout(
    "compare",
    (
        Chart("best cost so far, over CPU microseconds", ("compare/best_cost_over_cpu_us",)),
        Chart("gap of the plan to the best or the bound", ("compare_plan/gap",)),
        Chart("step time of the plan", ("compare_plan/step_time_s",)),
    ),
)


def write_comparison(comparison: Comparison, log_directory: Path) -> Path:
    """Writes one TensorBoard run for each planner.

    Args:
        comparison: What `heterps.planning.compare.compare` returned.
        log_directory: The runs lie in `<model>/<cluster and what differs>/<planner>` there.

    Returns:
        The folder that holds the runs.
    """
    problem = comparison.problem
    folder = comparison_folder(problem, log_directory)
    for row in comparison.rows:
        result = comparison.results.get(row.planner)
        _write_row(comparison, row, result, folder / file_name_of(row.planner))
    _write_pictures(comparison, folder / ALL_PLANNERS)
    return folder


def comparison_folder(problem: Problem, log_directory: Path) -> Path:
    """Where the runs of a comparison lie; whatever a model or a cluster is called, inside.

    What the job and the strategy have unlike others is part of the name, such as
    `gpt2/a100-v100,global_batch_size=64`: comparisons stay beside each other.
    """
    model = file_name_of(problem.profile.name)
    name = ",".join([problem.cluster.name, *_differences(problem)])
    return log_directory / model / file_name_of(name)


def _differences(problem: Problem) -> list[str]:
    """What is not as where nobody says otherwise, as `field=value`."""
    usual = {**Job(dtype=problem.profile.dtype).to_mapping(), **OPEN.to_mapping()}
    given = {**problem.job.to_mapping(), **problem.strategy.to_mapping()}
    # Where the size is left open, the job's is no more than a beginning.
    is_open = problem.strategy.chooses_micro_batch
    hidden = {"chooses_micro_batch", *(["micro_batch_size"] if is_open else [])}
    return [
        f"{name}={_words(value)}"
        for name, value in given.items()
        if name not in hidden and value != usual.get(name)
    ]


def _words(value: object) -> str:
    return "+".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _write_pictures(comparison: Comparison, folder: Path) -> None:
    """A run of the pictures that hold all planners."""
    from heterps_agents.boards.board import Board

    writer = Board(folder, replaces=True)
    writer.add_layout(LAYOUT)
    for name, figure in (
        ("throughput", throughput_figure(comparison)),
        ("best_over_cpu_seconds", curves_figure(comparison)),
    ):
        writer.add_figure(f"compare/{name}", figure, 0, close=False)
    writer.close()


def _microseconds(seconds: float) -> int:
    return round(1e6 * seconds)


def _write_row(
    comparison: Comparison, row: ComparisonRow, result: PlaceResult | None, folder: Path
) -> None:
    from heterps_agents.boards.board import Board

    metrics = {
        "compare_plan/throughput_samples_per_s": row.throughput_samples_per_s,
        "compare_plan/step_time_s": row.step_time_s,
        "compare_plan/price_usd_per_million_samples": row.price_usd_per_million_samples,
        "compare_plan/gap": row.gap,
        "compare_plan/planning_s": row.planning_s,
        "compare_plan/planning_cpu_s": row.planning_cpu_s,
        "compare_plan/evaluations": float(row.evaluations),
    }
    writer, end = Board(folder, replaces=True), _microseconds(row.planning_cpu_s)
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
    writer.add_results(settings, metrics, end)
    writer.add_text("compare_plan/summary", result.summary() if result else row.reason, 0)
    if comparison.bound_step_time_s is None and result is not None:
        said = f"micro-batches of {job.micro_batch_size}; {way or 'one device for each stage'}"
        writer.add_text("compare_plan/way", said, 0)
    points = comparison.curves.get(row.planner)
    if points:
        changes = [(_microseconds(point.cpu_seconds), point.cost) for point in points]
        writer.add_held("compare/best_cost_over_cpu_us", changes, end)
    if result is not None:
        problem = result.problem
        detailed = estimate(problem, result.plan, with_timeline=True)
        title = f"{result.plan.model} on {result.plan.cluster}, planner {row.planner}"
        figure = plan_timeline_figure(problem, result.plan, detailed, title)
        writer.add_figure("compare_plan/timeline", figure, 0, close=False)
    writer.close()
