"""`heterps compare`: the table, the JSON, the folder of plans and that of TensorBoard."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from heterps.commands.place import with_policy
from heterps.comparisons.folder import check_folder, write_folder
from heterps.comparisons.tables import print_comparison
from heterps.planning.compare import USUAL, compare
from heterps.planning.problems import load_problem
from heterps.reports.console import print_json, remarks, say_when_compiling
from heterps.reports.figures import save_figure
from heterps.reports.tensorboard_report import comparison_folder, write_comparison
from heterps_configs.outputs import FIGURE_SUFFIXES, try_outputs


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
    output: Path | None,
    log_directory: Path | None,
    figure: Path | None,
    as_json: bool,
) -> None:
    """Compares, prints, and writes TensorBoard files unless told not to, and more if told to.

    `planners` may be several names with commas between; `output` is the folder of plans.
    """
    check_folder(output)
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
    files: dict[str, str] = {}
    if output is not None:
        files = write_folder(comparison, output)
        remarks.print(f"plans, timelines and tables written to {output}", soft_wrap=True)
    if figure is not None:
        from heterps.reports.planner_figures import curves_figure

        save_figure(curves_figure(comparison), figure)
        remarks.print(f"figure written to {figure}")
    if as_json:
        told = {"plan_files": files} if files else {}
        print_json({**comparison.to_mapping(), **told})
        return
    print_comparison(comparison, files)
