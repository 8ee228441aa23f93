"""What a page shows of a run: predicted beside measured."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from heterps.html_report.charts import Line, chart
from heterps.html_report.cluster_picture import cluster_picture
from heterps.html_report.markup import Markup, joined, section, table, tag
from heterps.html_report.memory_picture import memory_picture
from heterps.html_report.plan_page import stages_table
from heterps.html_report.timeline_picture import timeline_picture
from heterps.reports.console import percent_text, seconds_text
from heterps.reports.folding import folded_estimate, folded_names, stage_groups
from heterps.reports.run_report import (
    alike_devices,
    evaluation_line,
    recovery_text,
    step_time_lines,
    verification_text,
)
from heterps.reports.ways import recompute_share
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.plan import Plan
from heterps_configs.units import bytes_text
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_runtime.results.result import DeviceReport, RunResult

MEASURED, PREDICTED = "#332288", "#cc6677"


class RunFacts(NamedTuple):
    """What is predicted of a run's last plan.

    Attributes:
        problem: Of that plan.
        plan: The last plan.
        shown: What the run predicted of it, with what it had learned by then.
    """

    problem: Problem
    plan: Plan
    shown: Estimate

    @classmethod
    def of(cls, problem: Problem, plan: Plan, predicted: Estimate | None) -> RunFacts:
        """Without a prediction in the run's result the problem is simulated as it is.

        Args:
            problem: Of the plan.
            plan: A run's last one.
            predicted: As the run left it.
        """
        if predicted is None or not predicted.timeline:
            predicted = estimate(problem, plan, with_timeline=True, with_memory=True)
        return cls(problem, plan, predicted)

    def folded(self, shown: Estimate) -> Estimate:
        """An estimate of the plan with equal devices as one row."""
        return folded_estimate(self.problem, self.plan, shown)


def run_sections(result: RunResult, facts: RunFacts) -> Markup:
    """Everything that a run brought, then its last plan.

    Args:
        result: As the run left it.
        facts: Of the last plan.
    """
    peaks = {
        entry.device: entry.memory.peak_bytes
        for entry in result.devices
        if entry.memory is not None
    }
    picture = cluster_picture(facts.problem, stage_groups(facts.problem, facts.plan))
    return joined([
        tag("div", *(tag("p", line) for line in step_time_lines(result)), class_="lines"),
        section("Step time", _step_times(result)),
        section("Loss", _losses(result), _evaluations(result)),
        section("What happened", _events(result)),
        section("Devices", _devices(result), note="Of a step of the last plan."),
        section("The last plan", picture, stages_table(facts.problem, facts.plan, facts.shown)),
        *_timelines(result, facts),
        section("Memory as predicted", memory_picture(facts.folded(facts.shown), peaks),
                note="With the peaks that were measured."),
    ])  # fmt: skip


def _steps(result: RunResult) -> list[float]:
    """Their numbers for people, who count from 1."""
    return [float(result.first_step + number) for number in range(1, len(result.step_times_s) + 1)]


def _step_times(result: RunResult) -> Markup:
    steps, predicted = _steps(result), list[float]()
    *plans, _ = result.phases
    by_plan = {phase.generation: phase.predicted_step_time_s for phase in plans}
    for generation in result.generations:
        predicted.append(by_plan.get(generation, result.predicted_step_time_s))
    lines = [
        Line("measured", steps, result.step_times_s, is_step=True, color=MEASURED),
        Line("predicted", steps, predicted, is_step=True, is_dashed=True, color=PREDICTED),
    ]
    # Of emulated devices, beside times of a host that emulated none, the line would say nothing.
    lines = lines if result.has_comparable_times else lines[:1]
    return chart(lines, "step", seconds_text, "{:.0f}".format)


def _losses(result: RunResult) -> Markup:
    lines = [Line("training", _steps(result), result.losses, color=MEASURED)]
    found = result.evaluations
    if found and all("loss" in entry.figures for entry in found):
        steps = [float(entry.step) for entry in found]
        lines.append(Line("evaluation", steps, [e.figures["loss"] for e in found], color=PREDICTED))
    return chart(lines, "step", "{:.4g}".format, "{:.0f}".format, begins_at_zero=False)


def _evaluations(result: RunResult) -> Markup | None:
    return tag("p", evaluation_line(result.evaluations[-1])) if result.evaluations else None


def _events(result: RunResult) -> Markup:
    lines = [
        f"Re-placed at step {each.step + 1} by {each.planner}: predicted "
        f"{seconds_text(each.predicted_step_time_s)}, measured "
        f"{seconds_text(each.measured_step_time_s)}; moved {bytes_text(each.bytes_moved)} in "
        f"{seconds_text(each.seconds)}."
        for each in result.replans
    ]
    lines += [" ".join(recovery_text(each).split()) for each in result.recoveries]
    lines += [f"Went on after step {result.first_step}."] if result.first_step else []
    lines += [f"Newest checkpoint: {result.checkpoint}."] if result.checkpoint else []
    verification = verification_text(result)
    lines += [f"Verification: {verification}."] if verification else []
    return tag("ul", *(tag("li", line) for line in lines)) if lines else Markup("")


def _devices(result: RunResult) -> Markup:
    rows = [_device_row(entries) for entries in alike_devices(result)]
    headings = (
        "device",
        "busy",
        "bubble",
        "bubble predicted",
        "memory",
        "memory predicted",
        "limit",
    )
    return table(headings, rows, range(1, 7))


def _device_row(entries: Sequence[DeviceReport]) -> tuple[str, ...]:
    entry = max(entries, key=lambda each: each.predicted_memory_bytes or 0)
    peak = None if entry.memory is None else entry.memory.peak_bytes
    return (
        folded_names(each.device for each in entries),
        "" if entry.busy_s is None else seconds_text(entry.busy_s),
        *(
            "" if share is None else percent_text(share, 1)
            for share in (entry.bubble_share, entry.predicted_bubble_share)
        ),
        *(
            "" if count is None else bytes_text(count)
            for count in (peak, entry.predicted_memory_bytes, entry.memory_limit_bytes)
        ),
    )


def _timelines(result: RunResult, facts: RunFacts) -> list[Markup]:
    """The last step as measured, and as predicted, with the same rows."""
    again = recompute_share(facts.problem, facts.plan)
    end_s = max((event.end_s for event in result.timeline), default=0.0)
    predicted = facts.folded(facts.shown)
    measured = facts.folded(facts.shown.changed(timeline=result.timeline))
    rows = list(dict.fromkeys(event.device for event in predicted.timeline))
    bubble = facts.shown.bubble_share
    note = "" if bubble is None else f" Devices wait for {percent_text(bubble)} of the step."
    return [
        section("A step as measured", timeline_picture(measured.timeline, end_s, again, rows)),
        section(
            "The same step as predicted",
            timeline_picture(predicted.timeline, predicted.step_time_s, again, rows),
            note=f"Simulated with what the run knew of its devices.{note}",
        ),
    ]
