"""What a section of the agent's benchmark gets and gives back."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from benchmarks.shared.row_store import RowStore
from benchmarks.shared.row_store import Settings as RunSettings

Row = dict[str, Any]


@dataclass(frozen=True)
class Settings(RunSettings):
    """How a section is run.

    Attributes:
        workloads: Folder of published files; None: their sets are left out.
        policy: The chain policy that the tables show: a path or a shipped name.
        price_policy: The same for the objective price.
        graph_policy: The same for graphs.
        policies: Chain policies of other seeds, for the spread; none: some are trained.
        imitation: A chain policy that imitation alone made; empty: none.
        is_development: The development sets, on which choices are made, for the frozen ones.
    """

    workloads: Path | None = None
    policy: str = "generalist"
    price_policy: str = "price-generalist"
    graph_policy: str = "graph-generalist"
    policies: tuple[str, ...] = ()
    imitation: str = ""
    is_development: bool = False


class TableRows(NamedTuple):
    """One table of the results.

    Attributes:
        name: Short and unique in its section: the test set's.
        title: Heading.
        note: What a reader has to know, in one or two sentences.
        rows: Equal columns; `gap_...` and other shares as fractions.
    """

    name: str
    title: str
    note: str
    rows: list[Row]


class SectionResult(NamedTuple):
    """Tables and single numbers of a section, and the store that may be deleted afterwards."""

    tables: list[TableRows]
    summary: Row
    store: RowStore | None = None

    def plain(self) -> Row:
        """For JSON, which knows no infinite numbers: they become null."""
        tables = [
            {
                "name": table.name,
                "note": table.note,
                "rows": [finite(row) for row in table.rows],
            }
            for table in self.tables
        ]
        return {"tables": tables, "summary": finite(self.summary)}


def finite(row: Row) -> Row:
    """The row for JSON: what is not finite becomes null."""
    return {
        name: None if isinstance(value, float) and not math.isfinite(value) else value
        for name, value in row.items()
    }


@contextmanager
def progress_bar(name: str, total: int) -> Iterator[Callable[[str], None]]:
    """A bar on stderr, or a line for every tenth where that is a file.

    Yields:
        A function that says that one more is done, and of what.
    """
    console, done = Console(stderr=True), 0
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, TimeElapsedColumn(), console=console) as progress:
        bar = progress.add_task(name, total=total)

        def advance(text: str) -> None:
            nonlocal done
            done += 1
            progress.update(bar, description=f"{name}: {text}", advance=1)
            if not console.is_terminal and done * 10 // total > (done - 1) * 10 // total:
                print(f"{name}: {text}, {done} of {total}", file=sys.stderr, flush=True)

        yield advance


def every(values: Sequence[Any], most: int | None) -> list[Any]:
    """At most so many of the values, evenly spread over all of them."""
    if most is None or len(values) <= most:
        return list(values)
    return [values[index * len(values) // most] for index in range(most)]
