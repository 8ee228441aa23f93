"""The results as a person reads them: the terminal, Markdown, TensorBoard."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.agent.section import Row, SectionResult, TableRows
from benchmarks.shared.common import machine

ONLY_IN_JSON = ("cpu_ms_median", "evaluations", "messages")
# Gaps are what tables are about: their headings need not say so.
HEADINGS = {
    "gap_median": "median",
    "gap_mean": "mean",
    "gap_p95": "p95",
    "cpu_ms": "CPU ms",
}
# The same on a terminal, which may be narrow.
NARROW = {
    "problems": "n",
    "optimal": "opt.",
    "infeasible": "inf.",
    "over earliest finish": "to EF",
    "CPU ms": "ms",
}


def show(tables: Sequence[TableRows]) -> None:
    """Prints tables."""
    console = Console()
    for table in tables:
        rows = [shown_row(row) for row in table.rows]
        printed = Table(
            title=table.title, caption=table.note, caption_justify="left", box=SIMPLE_HEAD,
            padding=(0, 1, 0, 0), title_justify="left",
        )  # fmt: skip
        for name in _columns(rows):
            is_number = name in _number_columns(table.rows)
            printed.add_column(
                NARROW.get(name, name),
                justify="right" if is_number else "left",
                no_wrap=is_number,
                overflow="fold",
            )
        for row in rows:
            printed.add_row(*(row.get(name, "") for name in _columns(rows)))
        console.print(printed)


def markdown(results: Mapping[str, SectionResult], first: TableRows | None = None) -> str:
    """All tables, each under its heading; `first` stands before those of the sections."""
    names = machine()
    parts = [
        "# Results of the agent's benchmark",
        "Written by `python benchmarks/agent/agent.py --markdown FILE`; "
        "[agent.md](../agent.md) says how to read the tables. "
        f"Measured on {names['machine']}, Python {names['python']}.",
    ]
    for table in [first] if first else []:
        parts += [f"## {table.title}", table.note, table_text(table.rows)]
    for section, result in results.items():
        parts.append(f"## {section.capitalize()}")
        for table in result.tables:
            parts += [f"### {table.title}", table.note, table_text(table.rows)]
    return "\n\n".join(parts) + "\n"


def table_text(rows: list[Row]) -> str:
    """A Markdown table; numbers stand to the right."""
    shown = [shown_row(row) for row in rows]
    names, numbers = _columns(shown), _number_columns(rows)
    lines = ["| " + " | ".join(names) + " |"]
    lines.append("| " + " | ".join("---:" if name in numbers else "---" for name in names) + " |")
    lines += ["| " + " | ".join(row.get(name, "") for name in names) + " |" for row in shown]
    return "\n".join(lines)


def shown_row(row: Row) -> dict[str, str]:
    """The cells as text, by heading. What only JSON keeps is left out."""
    return {_heading(n): shown(n, value) for n, value in row.items() if n not in ONLY_IN_JSON}


def _columns(rows: list[dict[str, str]]) -> list[str]:
    return list(dict.fromkeys(name for row in rows for name in row))


def _number_columns(rows: list[Row]) -> set[str]:
    return {_heading(name) for row in rows for name, v in row.items() if isinstance(v, int | float)}


def _heading(name: str) -> str:
    return HEADINGS.get(name, name.replace("_", " "))


def shown(name: str, value: object) -> str:
    """A cell: shares in percent, milliseconds and counts with as many digits as mean something."""
    if not isinstance(value, int | float) or isinstance(value, bool):
        return str(value)
    if math.isnan(value):
        return ""
    if math.isinf(value):
        return "inf"
    if name.startswith(("gap", "over", "regret")) or name.endswith("share"):
        return f"{value:.2%}" if abs(value) < 0.1 else f"{value:.1%}"
    if name == "optimal":
        return f"{value:.0%}" if value in (0, 1) else f"{value:.1%}"
    if isinstance(value, int) or abs(value) >= 100:
        return f"{value:,.0f}"
    return f"{value:.3g}"
