"""The processes of an elastic run, one for each device: starting, watching and ending them."""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from heterps_runtime.elastic.worker_settings import WorkerSettings
from heterps_runtime.process.template import ForkedProcess, Template
from heterps_runtime.run.launcher import LOG_FILE, worker_environment
from heterps_runtime.specification.hosts import gloo_environment

# The reader ends with the pipe, which a child of the process may hold a little longer.
JOIN_S = 1.0
# PF_EXITING of Linux.
_EXITING = 0x4


def _environment(num_threads: int) -> dict[str, str]:
    return {**worker_environment(num_threads), **gloo_environment(None)}


def start_template(environment: Mapping[str, str], log: Path) -> Template:
    """The process that all others are forked from."""
    return Template("heterps_runtime.elastic.worker", environment, log)


class Line(NamedTuple):
    """What a process has said."""

    device: str
    content: dict[str, Any]


@dataclass
class Member:
    """One process.

    Attributes:
        is_ready: It has imported what it needs, and waits for a generation.
        is_warm: It has trained a step: from here on its heartbeats come regularly.
        fault_s: When a fault was injected into it; None where none was.
        is_standby: It has recorded the model before it was ready, so little can hold it up.
    """

    device: str
    process: ForkedProcess
    reader: threading.Thread
    is_ready: bool = False
    is_warm: bool = False
    fault_s: float | None = None
    beat: str = ""
    beat_at_s: float = 0.0
    is_standby: bool = False


class Processes(contextlib.AbstractContextManager["Processes", None]):
    """The processes of a run, as a context manager: leaving it ends them all.

    Args:
        directory: Run directory; what processes print before they have a log goes to its log.
        num_threads: Threads of each one's kernels.
    """

    def __init__(self, directory: Path, num_threads: int) -> None:
        self._directory, self._environment = directory, _environment(num_threads)
        self._template = start_template(self._environment, directory / LOG_FILE)
        self._lines: queue.Queue[Line] = queue.Queue()
        self.members: dict[str, Member] = {}
        self._dying: list[Member] = []

    def __exit__(self, *raised: object) -> None:
        for device in list(self.members):
            self.remove(device)
        for member in self._dying:
            member.process.wait()
            member.reader.join(JOIN_S)
        self._template.__exit__()

    def start(self, settings: WorkerSettings) -> None:
        """Starts the process of a device that has none."""
        device = settings.device
        assert device not in self.members
        arguments = [str(self._directory), settings.model_dump_json()]
        log = self._directory / LOG_FILE
        process = self._template.fork(arguments, self._environment, log)
        reader = threading.Thread(target=self._read, args=(device, process), daemon=True)
        self.members[device] = Member(
            device,
            process,
            reader,
            beat_at_s=time.monotonic(),
            is_standby=settings.is_standby,
        )
        reader.start()

    def lines(self, wait_s: float) -> Iterable[Line]:
        """What was said since the last call; waits a moment for the first line."""
        with contextlib.suppress(queue.Empty):
            yield self._lines.get(timeout=wait_s)
            while True:
                yield self._lines.get_nowait()

    def ended(self) -> list[tuple[Member, int]]:
        """Processes that have ended, with their codes as `subprocess` has them."""
        codes = ((member, exit_code(member.process)) for member in self.members.values())
        return [(member, code) for member, code in codes if code is not None]

    def running(self) -> list[Member]:
        """Processes that have not ended."""
        return [m for m in self.members.values() if m.process.poll() is None]

    def signal(self, device: str, number: signal.Signals) -> None:
        """Sends a signal to a process and its children."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.members[device].process.pid, number)

    def remove(self, device: str) -> None:
        """Ends a process, whatever its state, and forgets it; the system may take its time."""
        self.signal(device, signal.SIGKILL)
        self._dying.append(self.members.pop(device))
        self._dying = [member for member in self._dying if member.process.poll() is None]

    def _read(self, device: str, process: ForkedProcess) -> None:
        for text in process.stdout:
            # A process that is killed may leave half a line; model code may print as well.
            if text.startswith("{") and text.endswith("}\n"):
                with contextlib.suppress(ValueError):
                    self._lines.put(Line(device, json.loads(text)))


def exit_code(process: ForkedProcess) -> int | None:
    """How a process has ended, also where the system has not done away with it yet; else None.

    To free the memory of a process takes up to half a second on a busy host, and so long nobody can
    wait for it. That it is about to end, and how, stands in /proc at once (proc_pid_stat(5)).
    """
    code = process.poll()
    if code is not None:
        return code
    try:
        text = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return None  # no such file system, or it has just been done away with
    # After the name, which may hold spaces: fields 3 (state), 9 (flags) and 52 (exit code).
    fields = text.rpartition(")")[2].split()
    status = int(fields[49])
    if not int(fields[6]) & _EXITING or status == 0:
        return None
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
