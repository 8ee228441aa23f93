"""What a section of the online benchmark gets, gives back, and is asked to reach."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from benchmarks.agent.section import Row, TableRows, finite
from benchmarks.shared.common import machine
from benchmarks.shared.row_store import RowStore, Settings


class Target(NamedTuple):
    """A number of a section's summary that is asked for.

    Attributes:
        what: In words.
        key: Of the summary; a target whose key is missing there is not shown.
        limit: Largest value, or the smallest where `at_least`.
        at_least: More is better.
        unit: After the numbers; `%` shows a fraction as percent.
    """

    what: str
    key: str
    limit: float
    at_least: bool = False
    unit: str = ""


class SectionResult(NamedTuple):
    """What a section found.

    Attributes:
        tables: In the order in which they are shown.
        summary: Every number that is quoted elsewhere, by a readable key.
        store: May be deleted once the result is written.
    """

    tables: Sequence[TableRows]
    summary: Row
    store: RowStore | None = None


class Section(Protocol):
    """A module of this folder."""

    TITLE: str
    TARGETS: Sequence[Target]

    def run(self, settings: Settings) -> SectionResult:
        """Measures; rows that the settings' store has already are not measured again.

        Raises:
            HeterpsError: It cannot be run here; the other sections are run nevertheless.
        """
        ...


def plain(section: Section, result: SectionResult, seconds: float, command: str) -> Row:
    """A section's entry of the JSON file."""
    tables = [
        {**table._asdict(), "rows": [finite(row) for row in table.rows]} for table in result.tables
    ]
    return {
        "title": section.TITLE,
        "targets": judged(section.TARGETS, result.summary),
        "tables": tables,
        "summary": finite(result.summary),
        "seconds": round(seconds, 1),
        "command": command,
        **machine(),
    }


def judged(targets: Sequence[Target], summary: Mapping[str, Any]) -> list[Row]:
    """Asked and measured, line by line."""
    rows = []
    for target in targets:
        if target.key not in summary:
            continue
        value = float(summary[target.key])
        is_met = value >= target.limit if target.at_least else value <= target.limit
        bound = "at least" if target.at_least else "at most"
        rows.append(
            {
                "what": target.what,
                "must reach": f"{bound} {_number(target.limit, target.unit)}",
                "measured": _number(value, target.unit),
                "met": "yes" if is_met else "no",
            }
        )
    return rows


def _number(value: float, unit: str) -> str:
    text = f"{100 * value if unit == '%' else value:.3g}"
    return f"{text} {unit}".strip()
