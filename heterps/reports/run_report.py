"""What `heterps run` prints in the end: predicted beside measured."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.table import Table

from heterps.reports.console import answer, percent_text, seconds_text
from heterps.reports.folding import MOST_ROWS, folded_names, stage_stem
from heterps_configs.units import bytes_text
from heterps_runtime.results.changes import Recovery
from heterps_runtime.results.phases import Phase
from heterps_runtime.results.result import DeviceReport, Evaluation, RunResult

if TYPE_CHECKING:
    from heterps.online.controller import OnlineController

# What is too long for an answer; the trace and the run directory have it.
LEFT_OUT = frozenset(
    ("timeline", "earlier_timelines", "memory_curves", "final_plan", "final_estimate")
)


def result_mapping(result: RunResult, watcher: OnlineController | None) -> dict[str, Any]:
    """The JSON contract of `heterps run --json`."""
    data = result.model_dump(mode="json", exclude=set(LEFT_OUT))
    if watcher is not None:
        data["decisions"] = [decision.to_mapping() for decision in watcher.decisions]
    return data


def evaluation_line(found: Evaluation) -> str:
    """An evaluation in one line."""
    figures = ", ".join(f"{name} {value:.6g}" for name, value in found.figures.items())
    return f"after step {found.step}: {figures}"


def print_result(result: RunResult) -> None:
    """Predicted against measured, the losses, the devices, the re-plans."""
    for line in step_time_lines(result):
        answer.print(line)
    # Of several plans, or before a drift, the first one's speed is not the run's.
    first, *others = result.phases
    if (
        len(others) == 1
        and not _drift_text(first)
        and result.has_comparable_times
        and result.throughput_samples_per_s
        and result.predicted_throughput_samples_per_s
    ):
        answer.print(
            f"speed       predicted {result.predicted_throughput_samples_per_s:.4g} samples/s, "
            f"measured {result.throughput_samples_per_s:.4g}"
        )
    answer.print(f"loss        {result.losses[0]:.6f} -> {result.losses[-1]:.6f}")
    if result.evaluations:
        answer.print(f"evaluated   {evaluation_line(result.evaluations[-1])}")
    verification = verification_text(result)
    if verification:
        answer.print(f"verify      {verification}", soft_wrap=True)
    if result.first_step:
        answer.print(f"resumed     after step {result.first_step}")
    if result.checkpoint is not None:
        answer.print(f"checkpoint  {result.checkpoint}")
    for replan in result.replans:
        answer.print(
            f"re-placed   at step {replan.step + 1} by {replan.planner}: predicted "
            f"{seconds_text(replan.predicted_step_time_s)}, measured "
            f"{seconds_text(replan.measured_step_time_s)}; moved "
            f"{replan.bytes_moved / 2**20:.1f} MiB in {seconds_text(replan.seconds)}"
        )
    for recovery in result.recoveries:
        answer.print(recovery_text(recovery), soft_wrap=True)
    overruns = sum(entry.num_overruns for entry in result.devices)
    if overruns:
        total = sum(entry.num_actions for entry in result.devices)
        answer.print(
            f"emulation   {overruns} of {total} actions took the host longer than emulated"
        )
    answer.print(device_table(result))


def verification_text(result: RunResult) -> str:
    """What the same training in one process says of a run; empty where nobody asked."""
    if result.verification_error is not None:
        return f"the training in one process failed: {result.verification_error}"
    difference = result.max_loss_difference
    if difference is not None and math.isfinite(difference):
        return f"largest loss difference to one process {difference:.2e}"
    return "a loss is no number" if result.is_verified else ""


def step_time_lines(result: RunResult) -> list[str]:
    """Predicted beside measured: of the plan; of several plans, each, and the mean of the run.

    With slowdowns or drift the figures of a plan are of the steps before them; the mean of the run
    counts them all.
    """
    *plans, whole = result.phases
    if not result.has_comparable_times:
        return _lines_of_host_times(result, whole)
    if len(plans) == 1:
        lines = [
            f"step time   predicted {seconds_text(result.predicted_step_time_s)}, measured "
            f"{seconds_text(result.measured_step_time_s)} "
            f"({percent_text(result.relative_error, 1, is_change=True)})"
            f"{_drift_text(plans[0])}, times of {result.times_of}"
        ]
    else:
        lines = [f"step time   mean of each plan's steps, times of {result.times_of}"]
        lines += [
            f"  plan {number:<4} steps {phase.first_step + 1}-"
            f"{phase.first_step + phase.num_steps} by {phase.planner}: "
            f"{_means_text(phase)}{_drift_text(phase)}"
            for number, phase in _numbered(plans)
        ]
    mean = f"mean        of {_counted_text(whole)}: {_means_text(whole)}"
    if whole.num_drifted_steps:
        mean += f"; {whole.num_drifted_steps} since a drift that their prediction did not know"
    return [*lines, mean]


def _numbered(plans: Sequence[Phase]) -> list[tuple[int, Phase]]:
    """Plans with their numbers for people, who count from 1."""
    return [(phase.generation + 1, phase) for phase in plans if phase.generation is not None]


def _lines_of_host_times(result: RunResult, whole: Phase) -> list[str]:
    """What was measured where devices were to be emulated, and torch's engine emulates none."""
    speed = result.throughput_samples_per_s
    return [
        f"step time   measured {seconds_text(result.measured_step_time_s)}, times of this host: "
        "nothing was emulated",
        f"mean        of {_counted_text(whole)}: {seconds_text(whole.measured_step_time_s)}",
        *([f"speed       measured {speed:.4g} samples/s"] if speed else []),
        f"predicted   {seconds_text(result.predicted_step_time_s)} of emulated devices: "
        "to compare with a run of the engine heterps",
    ]


def _counted_text(phase: Phase) -> str:
    count = phase.num_counted_steps
    return f"{count} step{'s' if count != 1 else ''}"


def _means_text(phase: Phase) -> str:
    return (
        f"predicted {seconds_text(phase.predicted_step_time_s)}, measured "
        f"{seconds_text(phase.measured_step_time_s)} "
        f"({percent_text(phase.relative_error, 1, is_change=True)})"
    )


def _drift_text(phase: Phase) -> str:
    """That figures are of the steps before a drift, and what steps took since; empty: no drift."""
    if phase.drifted_from is None or phase.drifted_step_time_s is None:
        return ""
    if phase.began_drifted:
        return " under an older drift that its prediction did not know"
    since = f"since step {phase.drifted_from + 1} {seconds_text(phase.drifted_step_time_s)}"
    return f" before a drift; {since}"


def recovery_text(recovery: Recovery) -> str:
    """What changed, what it took, and where the state came from."""
    changes = [
        f"{what} {folded_names(names)}"
        for what, names in (("lost", recovery.lost), ("joined", recovery.joined))
        if names
    ]
    phases = {
        "noticed": recovery.detected_s,
        "planned": recovery.replanned_s,
        "connected": recovery.connected_s,
        "state": recovery.state_s,
    }
    taken = ", ".join(f"{name} {seconds_text(s)}" for name, s in phases.items() if s is not None)
    moved = [f"{bytes_text(n)} {source}" for source, n in recovery.bytes_by_source.items() if n]
    return (
        f"recovered   {'; '.join(changes) or 'same devices'}: first new step (step "
        f"{recovery.from_step + 1}) {seconds_text(recovery.first_step_s)} after ({taken}); "
        f"{recovery.steps_repeated} steps repeated; moved {', '.join(moved) or 'nothing'}\n"
        f"            {recovery.decision}"
    )


def device_table(result: RunResult) -> Table:
    """How busy and how full every device was under the last plan, beside the prediction.

    Of many devices, those with replicas of the same stages are one row, with the fullest's numbers.
    """
    groups = alike_devices(result)
    used = [entry for entry in result.devices if entry.stage_names]
    table, titles = Table(box=None), list[str]()
    if len(groups) < len(used):
        titles.append("the fullest device of each group")
    if any(_drift_text(phase) for phase in result.phases[-2:-1]):
        titles.append("busy and bubble of the steps before the drift")
    if titles:
        table.title, table.title_justify = "; ".join(titles), "left"
    headings = ("busy", "bubble", "predicted", "memory", "predicted", "limit")
    table.add_column("device", no_wrap=True)
    table.add_column("stages")
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=True)

    for entries in groups:
        entry = max(entries, key=_peak_bytes)
        table.add_row(
            folded_names(each.device for each in entries),
            folded_names(name for each in entries for name in each.stage_names),
            "-" if entry.busy_s is None else seconds_text(entry.busy_s),
            _percent(entry.bubble_share),
            _percent(entry.predicted_bubble_share),
            _bytes(None if entry.memory is None else entry.memory.peak_bytes),
            _bytes(entry.predicted_memory_bytes),
            _bytes(entry.memory_limit_bytes),
        )
    idle = [entry.device for entry in result.devices if not entry.stage_names]
    if idle:
        table.caption, table.caption_justify = f"idle: {folded_names(idle)}", "left"
    return table


def alike_devices(result: RunResult) -> list[list[DeviceReport]]:
    """Those with stages: each alone where they are few, else with those that have the same ones."""
    devices = [entry for entry in result.devices if entry.stage_names]
    if len(devices) <= MOST_ROWS:
        return [[entry] for entry in devices]
    found: dict[tuple[str, ...], list[DeviceReport]] = {}
    for entry in devices:
        found.setdefault(tuple(map(stage_stem, entry.stage_names)), []).append(entry)
    return list(found.values())


def _peak_bytes(entry: DeviceReport) -> int:
    known = None if entry.memory is None else entry.memory.peak_bytes
    return known or entry.predicted_memory_bytes or 0


def _bytes(num_bytes: int | None) -> str:
    return "-" if num_bytes is None else bytes_text(num_bytes)


def _percent(share: float | None) -> str:
    return "-" if share is None else percent_text(share, 1)
