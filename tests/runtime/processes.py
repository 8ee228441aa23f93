"""The processes of a run, found in the system's list by the run's directory."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from tests.kept_templates import waiting_processes


class Found(NamedTuple):
    """One process.

    Attributes:
        pid: Its number.
        device: Whose rank it is; empty for one that starts others.
    """

    pid: int
    device: str


def processes_of(directory: Path) -> list[Found]:
    """All that run for a directory, or one in it; those that have ended do not count.

    Nor do templates that wait for the next test's run.
    """
    listing = subprocess.run(
        ["ps", "-ww", "-eo", "pid=,stat=,comm:20=,args="],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    found, waiting = [], waiting_processes()
    for line in listing.splitlines():
        pid, state, rest = line.split(None, 2)
        if int(pid) in waiting or state.startswith("Z"):
            continue
        # Copies of a template have its arguments, and write into logs of their own.
        if str(directory) in rest or any(str(directory) in path for path in _outputs(pid)):
            name = rest[:20].strip()
            device = name.removeprefix("heterps ") if name.startswith("heterps ") else ""
            found.append(Found(int(pid), device))
    return found


def _outputs(pid: str) -> list[str]:
    """The files that a process of this user prints to."""
    paths = []
    for number in (1, 2):
        with contextlib.suppress(OSError):
            paths.append(os.readlink(f"/proc/{pid}/fd/{number}"))
    return paths


def ranks_of(directory: Path) -> dict[str, int]:
    """Device -> number of its process."""
    return {device: pid for pid, device in processes_of(directory) if device}


def parent_of(pid: int) -> int:
    """The process that started another one."""
    # The name of the process, in brackets, may hold anything.
    _, _, rest = Path(f"/proc/{pid}/stat").read_text().rpartition(")")
    return int(rest.split()[1])


def kill_all(pids: Iterable[int]) -> None:
    """Kills processes; where one dies with another that was killed before it, it is gone."""
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
