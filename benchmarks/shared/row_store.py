"""Rows that are kept while a long benchmark goes on, so that it can be interrupted and resumed."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.shared.common import machine
from heterps_configs.documents.yaml_files import write_text

Row = dict[str, Any]


class RowStore:
    """Finished rows by key, in the order in which they were added.

    The file has the settings in its first line and a row in each line behind it, so that adding a
    row costs the same however many there are.

    Args:
        path: File that every row is appended to, and that the next run reads; None: no file.
        settings: What the rows depend on. Rows that were made with others are forgotten.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self._path = path
        self._rows: dict[str, Row] = {}
        if path is not None:
            self._rows = dict(_rows_of(path, settings))
            lines = [{"settings": settings}, *({"key": k, "row": r} for k, r in self._rows.items())]
            write_text(path, "".join(json.dumps(line) + "\n" for line in lines))

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __getitem__(self, key: str) -> Row:
        return self._rows[key]

    def add(self, key: str, row: Row) -> None:
        """Keeps a row, on disk where there is a file."""
        self._rows[key] = row
        if self._path is not None:
            with self._path.open("a") as file:
                file.write(json.dumps({"key": key, "row": row}) + "\n")

    def remove(self) -> None:
        """Deletes the file: all rows are written elsewhere now."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _rows_of(path: Path, settings: dict[str, Any]) -> Iterator[tuple[str, Row]]:
    """Rows of a file with these settings; a last line that was cut off is left out."""
    if not path.exists():
        return
    first, *lines = path.read_text().splitlines() or [""]
    try:
        if json.loads(first) != json.loads(json.dumps({"settings": settings})):
            return
        for line in lines:
            content = json.loads(line)
            yield content["key"], content["row"]
    except json.JSONDecodeError:
        return


@dataclass(frozen=True)
class Settings:
    """How a section is run.

    Attributes:
        quick: A look, in little time.
        seed: Of all that is drawn.
        partial_file: Finished rows are kept beside it; None: only in memory.
    """

    quick: bool = False
    seed: int = 0
    partial_file: Path | None = None

    def store(self, section: str, **depends_on: object) -> RowStore:
        """Finished rows of a section; forgotten where these settings were others."""
        path = self.partial_file
        if path is not None:
            path = path.with_name(f"{path.stem}.{section}{path.suffix}")
        settings = {"quick": self.quick, "seed": self.seed, **machine(), **depends_on}
        return RowStore(path, settings)
