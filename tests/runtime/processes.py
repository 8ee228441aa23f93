"""The processes of a run, found in the system's list by the run's directory."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple


class Found(NamedTuple):
    """One process.

    Attributes:
        pid: Its number.
        device: Whose rank it is; empty for one that starts others.
    """

    pid: int
    device: str


def processes_of(directory: Path) -> list[Found]:
    """All that run for a directory, or one in it; those that have ended do not count."""
    listing = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,stat=,comm:20=,args="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found = []
    for line in listing.splitlines():
        pid, state, rest = line.split(None, 2)
        if str(directory) in rest and not state.startswith("Z"):
            name = rest[:20].strip()
            device = name.removeprefix("heterps ") if name.startswith("heterps ") else ""
            found.append(Found(int(pid), device))
    return found


def ranks_of(directory: Path) -> dict[str, int]:
    """Device -> number of its process."""
    return {device: pid for pid, device in processes_of(directory) if device}
