"""The results as a person reads them: the terminal and Markdown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from benchmarks.agent.outputs import show as show_tables
from benchmarks.agent.outputs import table_text
from benchmarks.agent.section import Row, TableRows

TARGETS_TITLE = "What is asked for, and what was measured"


def show(entry: Mapping[str, Any]) -> None:
    """Prints a section's tables, and what was asked of it."""
    tables = [TableRows(**table) for table in entry["tables"]]
    if entry["targets"]:
        tables.append(TableRows("targets", TARGETS_TITLE, "", entry["targets"]))
    show_tables(tables)
    print(f"{entry['title']}: {entry['seconds']:.0f} s")


def markdown(entries: Mapping[str, Mapping[str, Any]]) -> str:
    """All sections; what was asked of them stands in front."""
    parts = [
        "# Results of the online benchmark",
        "Written by `python benchmarks/online/online.py --json FILE --markdown FILE`. "
        "Emulated devices compute for real and sleep until the emulated time: "
        "none of these is a hardware result.",
    ]
    targets: list[Row] = [row for entry in entries.values() for row in entry["targets"]]
    if targets:
        note = "*met* is about these runs, on this machine."
        parts += [f"## {TARGETS_TITLE}", note, table_text(targets)]
    for entry in entries.values():
        parts.append(f"## {entry['title']}")
        parts.append(
            f"`{entry['command']}`: {entry['seconds']:.0f} s on {entry['machine']}, "
            f"Python {entry['python']}."
        )
        for table in entry["tables"]:
            rows = [_without_nothing(row) for row in table["rows"]]
            parts += [f"### {table['title']}", table["note"], table_text(rows)]
    return "\n\n".join(part for part in parts if part) + "\n"


def _without_nothing(row: Row) -> Row:
    """JSON has null where there is no number; a table has an empty cell."""
    return {name: "" if value is None else value for name, value in row.items()}
