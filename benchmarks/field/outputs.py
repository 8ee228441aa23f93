"""The tables of the field as Markdown, and what stands in their cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from benchmarks.shared.common import machine

Row = dict[str, Any]
HEADINGS = {
    "over_best_median": "over the best, median",
    "over_best_p95": "p95",
    "best_or_equal": "best or equal",
    "no_answer_share": "no plan",
    "cpu_s_median": "CPU, median",
    "cpu_s_max": "max",
    "predicted_over_simulated": "predicted over simulated, median",
    "gap_median": "gap to the bound, median",
    "gap_p95": "gap, p95",
    "reasons": "why no plan",
    "auto_over_best": "auto over the best",
    "ahead": "ahead of auto",
    "auto_over_baseline": "auto over the baseline",
    "known_from": "known from",
}
# On the terminal.
SHORT = {
    "over_best_median": "median",
    "over_best_p95": "p95",
    "best_or_equal": "best",
    "no_answer_share": "no plan",
    "cpu_s_median": "CPU",
    "cpu_s_max": "max",
    "predicted_over_simulated": "predicted",
    "gap_median": "gap",
    "gap_p95": "p95",
    "auto_over_best": "over",
    "auto_over_baseline": "auto",
}
WORDY = ("reasons", "what", "on", "why", "known_from")
NOTES = {
    "Planners": (
        "Simulated step time over the best that any planner found on that problem, of the "
        "problems that the planner answered. *Predicted over simulated*: the method's own "
        "prediction; of planners of this project that of the closed form. *CPU*: of a "
        "paper's method its own code, of planners of this project judging and proving as well. "
        "*Gap*: over the largest bound of all plans with a stage on each device."
    ),
    "Families": "Median over the best known; in brackets how many of the problems had a plan.",
    "Where others are ahead of auto": "Every problem on which any planner's step is shorter.",
    "Claims": (
        "The method's speed over its paper's baselines, on the paper's kind of cluster, both "
        "simulated here. *auto over the baseline*: what the planner of this project makes of it."
    ),
}


def markdown(
    tables: Mapping[str, Sequence[Row]], summary: Mapping[str, Any], command: str, what: str
) -> str:
    """All tables, each under its heading, and the summary.

    Args:
        tables: By heading.
        summary: Name and value.
        command: That wrote the file.
        what: Which problems, at which budget.
    """
    names = machine()
    parts = [
        "# The field on one table",
        f"Written by `{command}`. {what} Measured on {names['machine']}, Python {names['python']}.",
    ]
    for title, rows in tables.items():
        parts += [f"## {title}", NOTES.get(title, ""), _table(rows) if rows else "None."]
    lines = [f"| {_heading(name)} | {shown(name, value)} |" for name, value in summary.items()]
    parts += ["## Summary", "\n".join(["| what | |", "| --- | ---: |", *lines])]
    return "\n\n".join(part for part in parts if part) + "\n"


def shown(name: str, value: object) -> str:
    """A cell: shares in percent, seconds and ratios with as many digits as mean something."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return "" if value is None else str(value).replace("|", "\\|")
    if math.isnan(value):
        return ""
    if name.startswith(("gap", "auto_gap")) and value >= 10:
        return f"{1 + value:.3g} x"
    if name.startswith(("gap", "auto_gap")) or name.endswith("share"):
        return f"{100 * value:.3g} %"
    if "cpu_s" in name:
        return f"{value:.2g} s"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.4g}"


def printed(title: str, rows: Sequence[Row]) -> Table:
    """A table for the terminal, with short headings and without what takes many words."""
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    names = [name for name in (rows[0] if rows else ()) if name not in WORDY]
    for name in names:
        is_number = any(isinstance(row[name], int | float) for row in rows)
        table.add_column(
            SHORT.get(name, name.replace("_", " ")),
            justify="right" if is_number else "left",
            overflow="fold",
            no_wrap=is_number,
        )
    for row in rows:
        table.add_row(*(shown(name, row[name]) for name in names))
    return table


def wordy_lines(rows: Sequence[Row]) -> list[str]:
    """What `printed` leaves out, a line for each row that has it."""
    lines = []
    for row in rows:
        words = [str(row[name]) for name in WORDY if row.get(name)]
        if words:
            first = next(iter(row.values()))
            lines.append(f"{first}: {'; '.join(words)}")
    return lines


def _table(rows: Sequence[Row]) -> str:
    cells = [{_heading(name): shown(name, value) for name, value in row.items()} for row in rows]
    names = list(cells[0])
    numbers = {_heading(name) for name, value in rows[0].items() if isinstance(value, int | float)}
    lines = ["| " + " | ".join(names) + " |"]
    lines.append("| " + " | ".join("---:" if name in numbers else "---" for name in names) + " |")
    lines += ["| " + " | ".join(row.get(name, "") for name in names) + " |" for row in cells]
    return "\n".join(lines)


def _heading(name: str) -> str:
    return HEADINGS.get(name, name.replace("_", " "))
