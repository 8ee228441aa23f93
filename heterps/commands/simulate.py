"""`heterps simulate`: what the simulator says of a plan file."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, NamedTuple

import typer
from rich.console import JustifyMethod
from rich.table import Table

from heterps.planning.plans import load_plan_and_problem
from heterps.reports.chrome_trace import write_chrome_trace
from heterps.reports.console import (
    answer,
    interval_text,
    percent_text,
    print_json,
    remarks,
    say_when_compiling,
    seconds_text,
)
from heterps.reports.figures import plan_timeline_figure, save_figure
from heterps.reports.folding import folded_estimate, folded_title
from heterps.reports.tables import job_text
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.plan import Plan
from heterps_configs.outputs import FIGURE_SUFFIXES, try_outputs
from heterps_envs.certificates.plan import CertificateReport, check_certificate
from heterps_envs.certificates.simulated import bound_above_step, with_simulated
from heterps_envs.problem import Problem
from heterps_envs.simulator.interval import unmeasured_types
from heterps_envs.simulator.simulate import estimate

UNITS = ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "bytes"))
SPOT_TRACE_SUFFIX = ".csv"


class SimulateFiles(NamedTuple):
    """What is written, or read, beside the answer.

    Attributes:
        trace: One that ends in `.csv` is a spot trace to replay, any other a Chrome trace to write.
        figure: Of the timeline, or of the replay.
        memory_figure: Memory of each device.
    """

    trace: Path | None = None
    figure: Path | None = None
    memory_figure: Path | None = None


def run_simulate(
    plan_file: Path,
    files: SimulateFiles,
    *,
    certify: bool,
    model: str | None,
    cluster: str | None,
    as_json: bool,
    spot: Mapping[str, float | None] | None = None,
    tolerated: int | None = None,
) -> None:
    """Simulates, prints, and writes the trace and the figures where they are asked for.

    Args:
        plan_file: The plan.
        files: What is written or read besides.
        certify: Re-check the plan and its bound.
        model: Where the model moved to.
        cluster: Where the cluster moved to.
        as_json: Print JSON.
        spot: What the replay of a spot trace assumes (`heterps_envs.spot.costs.SpotSettings`).
        tolerated: Losses that a replay has plans for.

    Raises:
        Exit: With code 1: a claim of the plan does not hold.
    """
    trace, figure, memory_figure = files
    options = spot or {}
    replays = trace is not None and trace.suffix.lower() == SPOT_TRACE_SUFFIX
    try_outputs(
        {
            "--trace": (None if replays else trace, (".json", f"{SPOT_TRACE_SUFFIX} to read")),
            "--figure": (figure, FIGURE_SUFFIXES),
            "--memory-figure": (memory_figure, FIGURE_SUFFIXES),
        },
        read={"PLAN": plan_file, "--model": model, "--cluster": cluster},
    )
    if trace is not None and replays:
        from heterps.commands.spot import run_spot_replay

        ignored = {"--memory-figure": memory_figure is not None, "--certify": certify}
        for option in (name for name, is_given in ignored.items() if is_given):
            warnings.warn(f"{option} is ignored with a spot trace", stacklevel=1)
        run_spot_replay(
            plan_file, trace, figure=figure, model=model, cluster=cluster,
            options=options, tolerated=tolerated, as_json=as_json,
        )  # fmt: skip
        return
    if tolerated is not None or any(value is not None for value in options.values()):
        warnings.warn("options of spot traces are ignored without --trace FILE.csv", stacklevel=1)
    say_when_compiling()
    plan, problem = load_plan_and_problem(plan_file, model, cluster)
    shown = estimate(
        problem,
        plan,
        with_timeline=trace is not None or figure is not None,
        with_interval=True,
        with_memory=True,
    )
    heading = f"{plan.model} on {plan.cluster}, {plan.job.schedule}"
    report = None
    if certify:
        report = with_simulated(check_certificate(problem, plan), plan, shown.step_time_s)
    else:
        wrong = bound_above_step(plan, shown)
        if wrong is not None:
            warnings.warn(f"{plan_file}: {wrong}; --certify re-checks the plan", stacklevel=1)
    if as_json:
        data = shown.model_dump(mode="json", exclude={"timeline", "memory_curves"})
        print_json(data if report is None else data | {"certificate": certificate_data(report)})
    else:
        _print(shown, problem, plan)
        if report is not None:
            _print_certificate(report)
    if trace is not None:
        write_chrome_trace({"predicted": shown}, trace, problem, plan)
        remarks.print(f"trace written to {trace} (open it at ui.perfetto.dev)")
    if figure is not None:
        save_figure(plan_timeline_figure(problem, plan, shown, heading), figure)
        remarks.print(f"figure written to {figure}")
    if memory_figure is not None:
        from heterps.reports.memory_figure import memory_figure as draw

        title = folded_title(heading, plan)
        save_figure(draw(folded_estimate(problem, plan, shown), title), memory_figure)
        remarks.print(f"memory figure written to {memory_figure}")
    if report is not None and not report.is_valid:
        raise typer.Exit(1)


def certificate_data(report: CertificateReport) -> dict[str, Any]:
    """What was re-checked of a plan, for `--json`."""
    return {"is_valid": report.is_valid, **asdict(report)}


def _print_certificate(report: CertificateReport) -> None:
    verdict = "holds" if report.is_valid else "does not hold"
    if report.is_valid and not report.checked:
        verdict = "has nothing that could be re-checked"
    answer.print(f"certificate {verdict}; optimality: {report.optimality}")
    if report.lower_bound_s > 0:
        answer.print(f"lower bound, derived anew: {seconds_text(report.lower_bound_s)}")
    for title, lines in (
        ("wrong", report.problems),
        ("re-checked", report.checked),
        ("not re-checked", report.unchecked),
    ):
        for line in lines:
            answer.print(f"{title}: {line}", markup=False)


def _print(shown: Estimate, problem: Problem, plan: Plan) -> None:
    types = unmeasured_types(problem, plan)
    interval = interval_text(shown.step_time_low_s, shown.step_time_high_s, types)
    bubble = percent_text(shown.bubble_share or 0)
    answer.print(f"job: {job_text(problem)}")
    answer.print(
        f"step time {seconds_text(shown.step_time_s)}{interval}, "
        f"{shown.throughput_samples_per_s:.5g} samples/s, bubble {bubble}, "
        f"layer times: {shown.layer_times}"
    )
    answer.print(memory_table(folded_estimate(problem, plan, shown, with_types=False)))
    for note in shown.notes:
        answer.print(f"note: {note}")
    for reason in shown.reasons:
        answer.print(f"not feasible: {reason}")


def memory_table(shown: Estimate) -> Table:
    """What every device holds when it holds most.

    Args:
        shown: With its memory curves.
    """
    # One unit for the whole table keeps it within eighty columns.
    most = max([*shown.memory_bytes.values(), *shown.memory_limit_bytes.values(), 1])
    unit_bytes, unit = next((size, name) for size, name in UNITS if most >= size)
    table = Table(title=f"memory at its peak, {unit}", title_justify="left", box=None)
    headings = ("device", "parameters", "optimizer", "gradients", "activations", "buffers", "all")
    for heading in (*headings, "of"):
        # Groups of many devices have long names, which may take two lines.
        is_name = heading == "device"
        justify: JustifyMethod = "left" if is_name else "right"
        table.add_column(heading, justify=justify, no_wrap=not is_name, overflow="fold")
    for curve in shown.memory_curves:
        changing = zip(
            curve.gradient_bytes, curve.activation_bytes, curve.buffer_bytes, strict=True
        )
        parts = (curve.parameter_bytes, curve.optimizer_bytes, *max(changing, key=sum))
        limit = shown.memory_limit_bytes.get(curve.device)
        table.add_row(
            curve.device,
            *(f"{num / unit_bytes:.3g}" for num in (*parts, shown.memory_bytes[curve.device])),
            f"{limit / unit_bytes:.3g}" if limit else "",
        )
    return table
