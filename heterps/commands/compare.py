"""`heterps compare`: the table, the JSON and the TensorBoard folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.table import Table

from heterps.commands.place import with_policy
from heterps.planning.compare import USUAL, Comparison, ComparisonRow, compare
from heterps.planning.problems import load_problem
from heterps.reports.console import (
    answer,
    percent_text,
    print_json,
    remarks,
    say_when_compiling,
    seconds_text,
)
from heterps.reports.figures import save_figure
from heterps.reports.tables import dtype_hint, job_text
from heterps.reports.tensorboard_report import comparison_folder, write_comparison
from heterps.reports.ways import plan_ways
from heterps_agents.interface.registry import system_names
from heterps_agents.interface.system import PERIOD
from heterps_configs.outputs import FIGURE_SUFFIXES, try_outputs

# Columns of a terminal that has room for the wall-clock seconds too.
_WIDE = 100


def run_compare(
    model: str,
    cluster: str,
    planners: list[str],
    problem_options: dict[str, Any],
    *,
    evaluations: int,
    seconds: float | None,
    cpu_seconds: float | None,
    with_all: bool,
    policy: str | None,
    seed: int,
    log_directory: Path | None,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Compares, prints, and writes TensorBoard files unless told not to, and a figure if told to.

    `planners` may be several names with commas between.
    """
    try_outputs({"--figure": (figure, FIGURE_SUFFIXES)}, {"--logdir": log_directory})
    own = [] if policy is None else [with_policy(policy, seed=seed)]
    names = [name for text in planners for name in text.split(",")]
    problem = load_problem(model, cluster, **problem_options)
    if log_directory is not None:
        try_outputs(folders={"--logdir": comparison_folder(problem, log_directory)})
    say_when_compiling()
    with remarks.status("comparing planners") as status:
        comparison = compare(
            problem,
            [*(names or [USUAL]), *own],
            evaluations=evaluations,
            seconds=seconds,
            cpu_seconds=cpu_seconds,
            with_all=with_all,
            seed=seed,
            on_start=lambda name: status.update(f"planner {name}"),
        )
    if log_directory is not None:
        folder = write_comparison(comparison, log_directory)
        remarks.print(f"TensorBoard: tensorboard --logdir {folder}", soft_wrap=True)
    if figure is not None:
        from heterps.reports.planner_figures import curves_figure

        save_figure(curves_figure(comparison), figure)
        remarks.print(f"figure written to {figure}")
    if as_json:
        print_json(comparison.to_mapping())
        return
    print_comparison(comparison)


def print_comparison(comparison: Comparison) -> None:
    """Prints the table and what its gaps are measured against."""
    problem = comparison.problem
    has_open_size = problem.strategy.chooses_micro_batch
    answer.print(f"job: {job_text(problem, has_open_size=has_open_size)}")
    answer.print(comparison_table(comparison))
    answer.print(_gap_legend(comparison))
    if comparison.bound_step_time_s is None:
        answer.print(ways_table(comparison))
    if comparison.without_options:
        remarks.print(
            f"{', '.join(comparison.without_options)}: each stage is one device that keeps all; "
            "these planners choose no tensor parallel, recompute, offload and sharded state",
            soft_wrap=True,
        )
    if comparison.beyond_strategy:
        remarks.print(_beyond_line(comparison), soft_wrap=True)
    answer.print("to 1 %: CPU until its best was within 1 % of the best of all, by the closed form")
    for row in comparison.rows:
        if row.own_cost_s is not None:
            answer.print(_own_cost_line(comparison, row))
    for row in comparison.rows:
        if row.refused:
            remarks.print(f"refused: {row.reason}")
        elif not row.feasible and row.planner in system_names():
            remarks.print(f"infeasible: {row.reason}")
    hint = dtype_hint(comparison.problem)
    if hint is not None:
        remarks.print(f"hint: {hint}")
    if comparison.left_out:
        names = " and ".join(comparison.left_out)
        remarks.print(
            f"left out, for they train a network for every problem: {names}; "
            "--all shows them, and a smaller budget does"
        )


def _beyond_line(comparison: Comparison) -> str:
    """That some plans are of another kind than what the others may answer with."""
    found = {name: comparison.results[name].plan for name in comparison.beyond_strategy}
    options = {
        "--tensor-parallel": any(s.degree > 1 for plan in found.values() for s in plan.stages),
        "--recompute": any(s.recompute_layers for plan in found.values() for s in plan.stages),
        "--shard-state": any(plan.sharded_state for plan in found.values()),
    }
    used = " and ".join(f"{name} auto" for name, is_used in options.items() if is_used)
    return (
        f"{', '.join(found)}: not like the others: its stages are carried out in ways that they "
        f"may not choose, so it has no gap; with {used} they may"
    )


def comparison_table(comparison: Comparison) -> Table:
    """One row for each planner, the best first."""
    problem = comparison.problem
    title = f"{problem.profile.name} on {problem.cluster.name}"
    table = Table(title=title, title_justify="left", box=None)
    table.add_column("planner", no_wrap=True)
    headings = ["samples/s", "USD/million", "gap", "evaluations", "CPU", "to 1 %"]
    with_wall_clock = answer.width >= _WIDE
    if with_wall_clock:
        headings.append("planning")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)
    by_price = problem.job.objective == "price"

    def order(row: Any) -> float:
        if not row.feasible:
            return float("inf")
        return float(
            row.price_usd_per_million_samples if by_price else -row.throughput_samples_per_s
        )

    for row in sorted(comparison.rows, key=order):
        if not row.feasible:
            cells = ("refused" if row.refused else "infeasible", "", "")
        else:
            cells = (
                f"{row.throughput_samples_per_s:.5g}",
                f"{row.price_usd_per_million_samples:.5g}",
                "" if row.gap is None else percent_text(row.gap, 2),
            )
        near_s = row.near_best_cpu_s
        spent = [seconds_text(row.planning_cpu_s), "" if near_s is None else _rounded_text(near_s)]
        if with_wall_clock:
            spent.append(seconds_text(row.planning_s))
        table.add_row(row.planner, *cells, str(row.evaluations), *spent)
    return table


def _rounded_text(seconds: float) -> str:
    """Two digits: what is left of eighty columns."""
    return seconds_text(float(f"{seconds:.2g}"))


def ways_table(comparison: Comparison) -> Table:
    """How the plan of each planner carries out its stages, and with which micro-batches."""
    title = "how stages are carried out, and of how many layers"
    table = Table(title=title, title_justify="left", box=None)
    headings = ("planner", "micro-batch", "tensor parallel", "recompute", "offload", "sharded")
    for heading in headings:
        table.add_column(heading, no_wrap=True)
    by_time = sorted(comparison.results.items(), key=lambda entry: entry[1].estimate.step_time_s)
    for name, result in by_time:
        table.add_row(name, str(result.plan.job.micro_batch_size), *plan_ways(result.plan))
    return table


def _own_cost_line(comparison: Comparison, row: ComparisonRow) -> str:
    """What a paper's method predicts by its own cost model, beside our simulator."""
    assert row.own_cost_s is not None
    assert row.step_time_s is not None
    job = comparison.results[row.planner].plan.job
    own_s, num_micro_batches = row.own_cost_s, job.num_micro_batches
    text = f"{seconds_text(own_s)} a {row.own_cost_of}"
    if row.own_cost_of == PERIOD:
        text += f", {seconds_text(own_s * num_micro_batches)} for all {num_micro_batches}"
    own = comparison.results[row.planner].own_cost
    note = f"; {own.note}" if own is not None and own.note else ""
    return (
        f"{row.planner} itself predicts {text}; simulated: {seconds_text(row.step_time_s)} a step"
        f"{note}"
    )


def _gap_legend(comparison: Comparison) -> str:
    if comparison.problem.job.objective == "price":
        return "gap: price over the cheapest plan of this table"
    least_s = comparison.executable_step_time_s
    if least_s is None:
        return "gap: simulated step time over the shortest of this table"
    bound = f"gap: simulated step time over {seconds_text(least_s)}, which no plan can be below"
    closed_s = comparison.bound_step_time_s
    if closed_s is None or not comparison.bound_is_proven:
        return bound
    return f"{bound}; by the closed form {seconds_text(closed_s)} is the proven optimum"
