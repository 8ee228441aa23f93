"""Rows that are kept while a long benchmark goes on, so that it can be interrupted and resumed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heterps_configs.yaml_files import write_text

Row = dict[str, Any]


class RowStore:
    """Finished rows by key, in the order in which they were added.

    Args:
        path: File that is rewritten after every row, and read again by the next run; None: no file.
        settings: What the rows depend on. Rows that were made with others are forgotten.
    """

    def __init__(self, path: Path | None, settings: dict[str, Any]) -> None:
        self._path, self._settings = path, settings
        self._rows: dict[str, Row] = {}
        if path is not None and path.exists():
            content = json.loads(path.read_text())
            if content["settings"] == settings:
                self._rows = content["rows"]

    def __contains__(self, key: str) -> bool:
        return key in self._rows

    def __getitem__(self, key: str) -> Row:
        return self._rows[key]

    def add(self, key: str, row: Row) -> None:
        """Keeps a row, on disk where there is a file."""
        self._rows[key] = row
        if self._path is not None:
            content = {"settings": self._settings, "rows": self._rows}
            write_text(self._path, json.dumps(content, indent=1) + "\n")
