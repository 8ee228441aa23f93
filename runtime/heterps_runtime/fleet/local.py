"""Processes on this host, forked from one that has imported what they need."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path
from signal import Signals

from heterps_runtime.fleet.processes import DeviceProcess, Line, Place, Say
from heterps_runtime.fleet.worker_settings import WorkerSettings
from heterps_runtime.process.template import ForkedProcess, Template
from heterps_runtime.run.launcher import RECORDING_MODULE, worker_environment
from heterps_runtime.run.rank_errors import LOG_FILE
from heterps_runtime.specification.hosts import Hosts, gloo_environment

# The reader ends with the pipe, which a child of the process may hold a little longer.
JOIN_S = 1.0
WORKER_MODULE = "heterps_runtime.elastic.worker"
# PF_EXITING of Linux.
_EXITING = 0x4


class LocalPlace(Place):
    """This host.

    Args:
        devices: That may run here.
        directory: Run directory; what processes print before they have a log goes to its log.
        num_threads: Threads of each one's kernels.
        hosts: Of a run on several.
        libraries: That its processes will import.
    """

    def __init__(
        self,
        devices: Sequence[str],
        directory: Path,
        num_threads: int,
        hosts: Hosts | None = None,
        libraries: Sequence[str] = (),
    ) -> None:
        self.devices = tuple(devices)
        self._directory, self._log = directory, directory / LOG_FILE
        self._environment = {**worker_environment(num_threads), **gloo_environment(hosts)}
        libraries = [RECORDING_MODULE, *libraries]
        self._template = Template(WORKER_MODULE, self._environment, self._log, libraries)

    def __exit__(self, *raised: object) -> None:
        self._template.__exit__()

    def start(self, settings: WorkerSettings, say: Say) -> LocalProcess:
        """Forks it."""
        arguments = [str(self._directory), settings.model_dump_json()]
        process = self._template.fork(arguments, self._environment, self._log)
        return LocalProcess(settings.device, process, say)


class LocalProcess(DeviceProcess):
    """One of them.

    Args:
        device: Whose part it plays.
        process: As it was forked.
        say: Receives its lines.
    """

    def __init__(self, device: str, process: ForkedProcess, say: Say) -> None:
        self.pid, self._device, self._process, self._say = process.pid, device, process, say
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def code(self) -> int | None:
        """How it has ended, also where the system has not done away with it yet; else None.

        To free the memory of a process takes up to half a second on a busy host, and so long
        nobody can wait for it. That it is about to end, and how, stands in /proc at once
        (proc_pid_stat(5)).
        """
        code = self._process.poll()
        return _coming_code(self.pid) if code is None else code

    def is_gone(self) -> bool:
        """Whether the system has done away with it."""
        return self._process.poll() is not None

    def is_stopped(self) -> bool:
        """As the system's list of processes says."""
        fields = _status_of(self.pid)
        return fields is not None and fields[0] in "Tt"

    def signal(self, number: Signals) -> None:
        """To its process group."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def wait(self) -> None:
        """Until it has gone and all that it said is heard."""
        self._process.wait()
        self._reader.join(JOIN_S)

    def _read(self) -> None:
        for text in self._process.stdout:
            # A process that is killed may leave half a line; model code may print as well.
            if text.startswith("{") and text.endswith("}\n"):
                with contextlib.suppress(ValueError):
                    self._say(Line(self._device, json.loads(text)))


def _status_of(pid: int) -> list[str] | None:
    """Fields 3 and up of proc_pid_stat(5)."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return None  # no such file system, or it has just been done away with
    return text.rpartition(")")[2].split()  # after the name, which may hold spaces


def _coming_code(pid: int) -> int | None:
    fields = _status_of(pid)
    if fields is None:
        return None
    # Fields 9 (flags) and 52 (exit code).
    status = int(fields[49])
    if not int(fields[6]) & _EXITING or status == 0:
        return None
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
