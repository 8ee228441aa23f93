"""`heterps compare`: the table, the JSON, the folder of plans and that of TensorBoard."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from heterps.commands.requests import Limits, ProblemRequest, with_policy
from heterps.comparisons.folder import check_folder, write_folder
from heterps.comparisons.tables import print_comparison
from heterps.planning.compare import ALL, USUAL, compare
from heterps.reports.console import print_json, remarks, say_when_compiling
from heterps.reports.figures import save_figure
from heterps.reports.tensorboard_report import comparison_folder, write_comparison
from heterps_configs.outputs import FIGURE_SUFFIXES, try_outputs


class CompareFiles(NamedTuple):
    """What is written beside the answer.

    Attributes:
        folder: For the plan file and the timeline of each planner, and for tables.
        log_directory: For TensorBoard.
        figure: Of each planner's best cost over its seconds.
    """

    folder: Path | None = None
    log_directory: Path | None = None
    figure: Path | None = None


def run_compare(
    asked: ProblemRequest,
    planners: Sequence[str],
    limits: Limits,
    *,
    with_all: bool,
    policy: str | None,
    seed: int,
    files: CompareFiles,
    as_json: bool,
) -> None:
    """Compares, prints, and writes TensorBoard files unless told not to, and more if told to.

    Args:
        asked: The problem.
        planners: Names; one text may be several with commas between.
        limits: Of each planner.
        with_all: Also those that train for long.
        policy: Of the user's own, as one planner more.
        seed: Of everything random.
        files: What is written.
        as_json: Print JSON.
    """
    folder, log_directory, figure = files
    check_folder(folder)
    try_outputs({"--figure": (figure, FIGURE_SUFFIXES)}, {"--logdir": log_directory})
    own = [] if policy is None else [with_policy(policy, seed=seed)]
    names = [name for text in planners for name in text.split(",")]
    if with_all and names and not {USUAL, ALL} & set(names):
        warnings.warn("--all is ignored beside --planner: only those named are asked", stacklevel=1)
    problem = asked.load()
    if log_directory is not None:
        try_outputs(folders={"--logdir": comparison_folder(problem, log_directory)})
    say_when_compiling()
    with remarks.status("comparing planners") as status:
        comparison = compare(
            problem,
            [*(names or [USUAL]), *own],
            evaluations=limits.evaluations,
            seconds=limits.seconds,
            cpu_seconds=limits.cpu_seconds,
            with_all=with_all,
            seed=seed,
            on_start=lambda name: status.update(f"planner {name}"),
        )
    if log_directory is not None:
        logs = write_comparison(comparison, log_directory)
        remarks.print(f"TensorBoard: tensorboard --logdir {logs}", soft_wrap=True)
    plan_files: dict[str, str] = {}
    if folder is not None:
        plan_files = write_folder(comparison, folder)
        remarks.print(f"plans, timelines and tables written to {folder}", soft_wrap=True)
    if figure is not None:
        from heterps.reports.planner_figures import curves_figure

        save_figure(curves_figure(comparison), figure)
        remarks.print(f"figure written to {figure}")
    if as_json:
        told = {"plan_files": plan_files} if plan_files else {}
        print_json({**comparison.to_mapping(), **told})
        return
    print_comparison(comparison, plan_files)
