"""The results in TensorBoard: tables as text and figures, methods as runs, budgets as hparams.

tensorboard --logdir FOLDER
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from torch.utils.tensorboard import SummaryWriter
from torch.utils.tensorboard.summary import hparams

from benchmarks.agent_sections.figures import gap_figure
from benchmarks.agent_sections.outputs import table_text
from benchmarks.agent_sections.section import Row, SectionResult

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


def write_tensorboard(folder: Path, results: Mapping[str, SectionResult]) -> None:
    """Writes the events of all tables.

    `tables` has every table as text and every comparison as a figure. `curves/SECTION/METHOD` is a
    run for each method; the step of its scalars is the CPU time in microseconds a problem, so that
    more budget stands further to the right. `budgets/...` is a run for each method and budget, with
    both as hparams.
    """
    with SummaryWriter(str(folder / "tables")) as writer:
        for section, result in results.items():
            for table in result.tables:
                name = f"{section}/{table.name}"
                writer.add_text(name, f"{table.note}\n\n{table_text(table.rows)}")
                if any("gap_p95" in row for row in table.rows):
                    writer.add_figure(name, gap_figure(table))
    lines = list(_lines(results))
    for line in lines:
        _write_curve(folder / "curves" / line.section / _file_name(line.row["method"]), line)
    _write_budgets(folder / "budgets", lines)


def _lines(results: Mapping[str, SectionResult]) -> Iterator[Line]:
    for section, result in results.items():
        for table in result.tables:
            for row in table.rows:
                if "method" in row and "cpu_ms" in row:
                    yield Line(section, table.name, row)


def _write_curve(folder: Path, line: Line) -> None:
    with SummaryWriter(str(folder)) as writer:
        for name, value in line.numbers.items():
            step = round(1e3 * line.row["cpu_ms"])
            writer.add_scalar(f"{line.section} {line.table}/{name}", value, step)


def _write_budgets(folder: Path, lines: list[Line]) -> None:
    runs: dict[tuple[str, str, str], dict[str, float]] = {}
    for line in lines:
        key = (line.section, line.row["method"], line.row["budget"])
        numbers = {f"budgets/{line.table}/{name}": v for name, v in line.numbers.items()}
        runs.setdefault(key, {}).update(numbers)
    for (section, method, budget), metrics in runs.items():
        parameters = {"section": section, "method": method, "budget": budget or "its own"}
        name = _file_name(f"{method} {budget}")
        with SummaryWriter(str(folder / section / name)) as writer:
            for summary in hparams(parameters, metrics):  # type: ignore[no-untyped-call]
                writer.file_writer.add_summary(summary)
            for tag, value in metrics.items():
                writer.add_scalar(tag, value)


def _file_name(text: str) -> str:
    return "-".join("".join(c if c.isalnum() else " " for c in text).split())
