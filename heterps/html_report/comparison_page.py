"""What a page shows of a comparison of planners."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from heterps.html_report.charts import Line, chart
from heterps.html_report.markup import Markup, joined, section, table, tag
from heterps.planning.comparison import ComparisonRow
from heterps.planning.curves import CurvePoint
from heterps.reports.console import percent_text, seconds_text
from heterps_configs.documents.base import Document
from heterps_configs.documents.job import Job

# Earlier finds are at the left edge, and worse ones at the upper.
EARLIEST_S, MOST_ABOVE = 1e-4, 0.5


class ComparedPlanners(Document):
    """What `heterps compare --json` prints.

    Attributes:
        plan_files: By planner, its plan's file, where the comparison was written to a folder.
    """

    model: str
    cluster: str
    job: Job
    bound_step_time_s: float | None = None
    bound_is_proven: bool = False
    executable_step_time_s: float | None = None
    rows: tuple[ComparisonRow, ...]
    left_out: tuple[str, ...] = ()
    beyond_strategy: tuple[str, ...] = ()
    curves: Mapping[str, tuple[CurvePoint, ...]] = {}
    plan_files: Mapping[str, str] = {}


def comparison_sections(found: ComparedPlanners) -> Markup:
    """Table and curves."""
    job = found.job
    words = (
        f"batch {job.global_batch_size}, {job.dtype}, {job.optimizer}, {job.schedule}; objective "
        f"{job.objective}"
    )
    return joined([
        tag("p", words),
        section("Planners", _table(found), _reasons(found), note=_notes(found)),
        section("Best found over time", _curves(found),
                note="By the closed form, which planners minimise: how far each was above the best "
                "of all; what is above 50 % is shown there."),
    ])  # fmt: skip


def _notes(found: ComparedPlanners) -> str:
    return (
        f"{_gap_note(found)} Own error: what a planner itself expects of the step (a paper's "
        "method by its own cost, others by the closed form) over the simulated one. To 1 %: CPU "
        "until its best was within 1 % of the best of all, by the closed form."
    )


def _gap_note(found: ComparedPlanners) -> str:
    if found.executable_step_time_s is not None:
        least = seconds_text(found.executable_step_time_s)
        return f"Gaps are of simulated steps, over {least}, which no plan can be below."
    if found.bound_step_time_s is None:
        return "Gaps are simulated, over the best of all."
    # Of files that were written before gaps were of simulated steps.
    kind = "proven optimum of the closed form" if found.bound_is_proven else "lower bound"
    return f"Gaps are of the closed form, over the {kind}, {seconds_text(found.bound_step_time_s)}."


def _table(found: ComparedPlanners) -> Markup:
    by_price = found.job.objective == "price"

    def order(row: ComparisonRow) -> float:
        cost = row.price_usd_per_million_samples if by_price else row.step_time_s
        return math.inf if cost is None else cost

    rows = [
        (
            row.planner,
            _cell(row.throughput_samples_per_s, "{:.5g}".format),
            _cell(row.step_time_s, seconds_text),
            _cell(row.price_usd_per_million_samples, "{:.5g}".format),
            _cell(row.over_best, "{:.4g} x".format),
            _cell(row.gap, lambda gap: percent_text(gap, 2)),
            f"{row.evaluations:,}",
            seconds_text(row.planning_cpu_s),
            _cell(row.near_best_cpu_s, seconds_text),
            _cell(row.own_error, lambda error: percent_text(error, 1, is_change=True)),
            found.plan_files.get(row.planner, ""),
        )
        for row in sorted(found.rows, key=order)
        if row.feasible
    ]
    headings = [
        "planner", "samples/s", "step", "USD per million", "over the best", "gap", "evaluations",
        "CPU", "to 1 %", "own error",
    ]  # fmt: skip
    if found.plan_files:
        headings.append("plan")
    return table(headings, [row[: len(headings)] for row in rows], range(1, 10))


def _cell(value: float | None, words: Callable[[float], str]) -> str:
    return "" if value is None else words(value)


def _reasons(found: ComparedPlanners) -> Markup:
    lines = [
        f"{row.planner}: cannot place: {row.reason.removeprefix(f'{row.planner}: ')}"
        for row in found.rows
        if row.reason
    ]
    lines += [f"left out: {', '.join(found.left_out)}"] if found.left_out else []
    if found.beyond_strategy:
        lines.append(
            f"of another kind than the others may answer: {', '.join(found.beyond_strategy)}"
        )
    return tag("ul", *(tag("li", line) for line in lines)) if lines else Markup("")


def _curves(found: ComparedPlanners) -> Markup:
    """How far above the best of all each was, over its processor seconds, to their logarithm."""
    curves = {name: points for name, points in found.curves.items() if points}
    least = min((point.cost for points in curves.values() for point in points), default=0.0)
    if least <= 0:
        return Markup("")
    spent_s = {row.planner: row.planning_cpu_s for row in found.rows}
    lines = []
    for name, points in curves.items():
        seconds = [point.cpu_seconds for point in points]
        seconds.append(max(spent_s.get(name, 0.0), seconds[-1]))
        above = [point.cost / least - 1 for point in points]
        at = [math.log10(max(value, EARLIEST_S)) for value in seconds]
        shown = [min(value, MOST_ABOVE) for value in (*above, above[-1])]
        lines.append(Line(name, at, shown, is_step=True))
    return chart(lines, "processor time", percent_text, _power_text)


def _power_text(exponent: float) -> str:
    return seconds_text(float(f"{10**exponent:.2g}"))
