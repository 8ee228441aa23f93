"""Errors of ranks: what they left in the run directory, and which of them is the cause."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from heterps_configs.errors import HeterpsError

# What all ranks of a host write that is no line of one rank.
LOG_FILE = "workers.log"
# Last lines of the log that an error shows: the folder of a run may be gone by then.
NUM_LOG_LINES = 8


class RankError(HeterpsError):
    """A rank of this host failed.

    Attributes:
        rank: Its number, or `reference`: the process that trains the whole model.
    """

    def __init__(self, message: str, rank: str) -> None:
        super().__init__(message)
        self.rank = rank


class LostConnectionError(RankError):
    """Ranks of this host lost the others; the cause lies on another host."""


def first_cause(directory: Path) -> RankError | None:
    """The error of the first rank that failed by itself; None where none did."""
    causes = [error for error in errors_of(directory) if not error["is_lost_rank"]]
    if not causes:
        return None
    first = causes[0]
    where = f"rank {first['rank']}" + (f" ({first['device']})" if first["device"] else "")
    return RankError(f"{where}: {first['message']}", first["rank"])


def errors_of(directory: Path) -> list[dict[str, Any]]:
    """What the ranks left that failed (`error-NAME.json`), the first one first."""
    errors = [json.loads(path.read_text()) for path in directory.glob("error-*.json")]
    return sorted(errors, key=lambda error: float(error["time_s"]))


def log_hint(directory: Path, rank_log: Path | None = None) -> str:
    """The end of a rank's log, or where it has none of the log of all."""
    for name, path in (("its", rank_log), ("the workers'", directory / LOG_FILE)):
        text = path.read_text(errors="replace") if path is not None and path.exists() else ""
        lines = [line for line in text.splitlines() if line.strip()][-NUM_LOG_LINES:]
        if lines:
            return "\n".join([f"{name} log ends with:", *lines])
    return "the workers left no log"
