"""The results in TensorBoard: tables as text and figures, methods as runs, budgets as hparams.

tensorboard --logdir FOLDER/curves
tensorboard --logdir FOLDER/budgets
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from benchmarks.agent.figures import family, gap_figure
from benchmarks.agent.outputs import table_text
from benchmarks.agent.section import Row, SectionResult
from heterps_agents.boards.board import Board
from heterps_agents.boards.event_file import EVENT_FILES

# What methods are compared by.
COLUMNS = ("gap_median", "gap_mean", "gap_p95", "optimal", "infeasible", "cpu_ms")


class Line(NamedTuple):
    """One row of a table, with where it stands."""

    section: str
    table: str
    row: Row

    @property
    def numbers(self) -> dict[str, float]:
        """What can be drawn."""
        values = {name: float(self.row[name]) for name in COLUMNS if name in self.row}
        return {name: value for name, value in values.items() if math.isfinite(value)}


def write_tensorboard(folder: Path, section: str, result: SectionResult) -> None:
    """Writes the events of a section's tables; earlier events of the section are deleted.

    `curves/SECTION/METHOD` is a run for each method; the step of its scalars is the CPU time in
    microseconds a problem, so that more budget stands further to the right. Beside them, `tables`
    has every table as text and every comparison as a figure. `budgets/SECTION/...` is a run for
    each method and budget, with both as hparams: a folder of its own, because TensorBoard shows no
    curves at first where there are more than 40 runs.
    """
    curves, budgets = folder / "curves" / section, folder / "budgets" / section
    for path in [*curves.rglob(EVENT_FILES), *budgets.rglob(EVENT_FILES)]:
        path.unlink()
    with Board(curves / "tables") as writer:
        for table in result.tables:
            name = f"{section}/{table.name}"
            writer.add_text(name, f"{table.note}\n\n{table_text(table.rows)}")
            if all("method" in row and "gap_p95" in row for row in table.rows):
                writer.add_figure(name, gap_figure(table))
    lines = list(_lines(section, result))
    runs: dict[str, list[Line]] = {}
    for line in lines:
        runs.setdefault(family(line.row["method"]), []).append(line)
    for method, points in runs.items():
        _write_curve(curves / _file_name(method), points)
    _write_budgets(budgets, lines)


def _lines(section: str, result: SectionResult) -> Iterator[Line]:
    for table in result.tables:
        for row in table.rows:
            if "method" in row and "cpu_ms" in row:
                yield Line(section, table.name, row)


def _write_curve(folder: Path, lines: list[Line]) -> None:
    with Board(folder) as writer:
        for line in sorted(lines, key=lambda line: float(line.row["cpu_ms"])):
            step = round(1e3 * line.row["cpu_ms"])
            for name, value in line.numbers.items():
                writer.add_scalar(f"{line.section} {line.table}/{name}", value, step)


def _write_budgets(folder: Path, lines: list[Line]) -> None:
    runs: dict[tuple[str, str, str], dict[str, float]] = {}
    for line in lines:
        key = (line.section, line.row["method"], line.row["budget"])
        name = f"{line.section} by budget, {line.table}"
        numbers = {f"{name}/{column}": value for column, value in line.numbers.items()}
        runs.setdefault(key, {}).update(numbers)
    for (section, method, budget), metrics in runs.items():
        parameters = {"section": section, "method": method, "budget": budget or "its own"}
        name = _file_name(f"{method} {budget}")
        with Board(folder / name) as writer:
            writer.add_results(parameters, metrics, 0)


def _file_name(text: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in text).split())
