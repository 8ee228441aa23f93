"""Runs the entries of a section over its test sets: a table for each, a stored row a problem."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.agent.comparison import Answer, Case, Entry, References, Row, measure, summarise
from benchmarks.agent.section import TableRows, progress_bar
from benchmarks.shared.row_store import RowStore

SUMMARY_COLUMNS = ("gap_median", "gap_mean", "gap_p95", "optimal", "infeasible", "cpu_ms")


def set_tables(
    section: str,
    sets: Mapping[str, Sequence[Case]],
    entries: Mapping[str, Sequence[Entry[Case, Answer]]],
    cost: Callable[[Case, Answer], float],
    store: RowStore,
    seed: int,
    notes: Mapping[str, str],
    against: str | None = None,
) -> list[TableRows]:
    """The tables of all sets.

    Args:
        section: Its name, for titles and progress.
        sets: Problems by name of the set.
        entries: The lines of each set's table.
        cost: Cost of an answer by the definition; inf where it may not be used.
        store: Keeps what each problem gave.
        seed: Of all methods.
        notes: What the sets are, by name.
        against: See `summarise`.
    """
    tables: list[TableRows] = []
    warm: set[str] = set()
    with progress_bar(section, sum(len(cases) for cases in sets.values())) as advance:
        for name, cases in sets.items():
            lines = entries[name]
            for index, case in enumerate(cases):
                key = f"{name}/{index}"
                due = [entry for entry in lines if entry.first is None or index < entry.first]
                if key not in store:
                    if not warm.issuperset(entry.name for entry in due):
                        measure(due, case, cost, seed)  # compiles, and fills caches
                        warm.update(entry.name for entry in due)
                    store.add(key, dict(measure(due, case, cost, seed)))
                advance(name)
            measured = [store[f"{name}/{index}"] for index in range(len(cases))]
            note = f"{notes[name]} {References.of(measured, lines).described}"
            rows = summarise(measured, lines, against)
            tables.append(TableRows(name, f"{section}: {name}", note, rows))
    return tables


def numbers(tables: Sequence[TableRows]) -> Row:
    """The columns of every line, by `set: line: column`, for the summary."""
    found: Row = {}
    for table in tables:
        for row in table.rows:
            line = f"{row['method']}, {row['budget']}" if row["budget"] else row["method"]
            for column in SUMMARY_COLUMNS:
                found[f"{table.name}: {line}: {column}"] = row[column]
    return found


def digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    """Eight hexadecimal digits of the content of arrays."""
    content = hashlib.sha256()
    for name in sorted(arrays):
        content.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return content.hexdigest()[:8]
