"""`heterps import`: what another tool runs today, as a plan."""

from __future__ import annotations

import time
import warnings
from pathlib import Path

from heterps.commands.place import plan_files, save_plan
from heterps.commands.requests import JobOptions, ProblemRequest
from heterps.exports.imported import assumed_notes, import_plan
from heterps.micro_batches.one_size import with_executable
from heterps.micro_batches.place_result import PlaceResult
from heterps.reports.console import answer, print_json, say_when_compiling
from heterps.reports.tables import result_lines, stages_table
from heterps_configs.documents.job import Job
from heterps_configs.outputs import try_outputs
from heterps_envs.simulator.simulate import estimate

# Options that the file of another tool may overrule, by the field of a job.
_OPTIONS = {
    "global_batch_size": "--global-batch",
    "micro_batch_size": "--micro-batch",
    "schedule": "--schedule",
}


def run_import(
    path: Path,
    asked: ProblemRequest,
    *,
    source: str,
    devices: str | None,
    output: Path | None,
    as_json: bool,
) -> None:
    """Reads the file, prints what the simulator says of it, and writes the plan.

    Args:
        path: Of the other tool.
        asked: The problem that the split is read for.
        source: Which tool.
        devices: Names with commas between, in the order of its ranks.
        output: The plan file.
        as_json: Print JSON.
    """
    try_outputs(plan_files(output, asked.model), read={"FILE": path, **asked.read})
    started_s = time.perf_counter()
    say_when_compiling()
    named = None if devices is None else [name.strip() for name in devices.split(",")]
    problem, plan = import_plan(asked.load(), path, source, named)
    _warn_of_ignored(path, asked.job, problem.job)
    shown = estimate(problem, plan, with_interval=True)
    shown = shown.changed(notes=(*assumed_notes(problem, plan, source), *shown.notes))
    seconds = time.perf_counter() - started_s
    result = PlaceResult(problem, source, plan, shown, plan.bound, 0, seconds)
    result = with_executable(result, [problem])
    if output is not None:
        save_plan(result, output)
    if as_json:
        print_json(result.to_mapping())
        return
    answer.print(stages_table(result, answer.width))
    for line in result_lines(result):
        answer.print(line)
    for reason in shown.reasons:
        answer.print(f"not feasible: {reason}")


def _warn_of_ignored(path: Path, asked: JobOptions, job: Job) -> None:
    """Says which options do not count, as the file says something else."""
    named = asked.named()
    for field, option in _OPTIONS.items():
        found = getattr(job, field)
        if field in named and named[field] != found:
            warnings.warn(f"{option} {named[field]} is ignored: {path} says {found}", stacklevel=2)
