"""The launcher: starts the ranks of a run, reads what they print, tells a failure in one line.

On several hosts, each has a launcher, which starts its own ranks
(`heterps_runtime.run.host_group`).

Whatever happens, no process is left: ranks are asked to end, then killed with their groups, and
every rank ends itself when the launcher or the process that forked it is gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from heterps_configs.errors import HeterpsError
from heterps_runtime.network.secret import VARIABLE as SECRET_VARIABLE
from heterps_runtime.process.rank_log import rank_log_path
from heterps_runtime.process.template import ForkedProcess, Template
from heterps_runtime.results.result import RESULT_FILE
from heterps_runtime.run.rank_errors import (
    LOG_FILE,
    LostConnectionError,
    RankError,
    errors_of,
    first_cause,
    log_hint,
)
from heterps_runtime.run.world import World
from heterps_runtime.specification.hosts import gloo_environment

WORKER_MODULE = "heterps_runtime.run.worker"
# What torch imports to record a model, sympy with it: half a second of a core in each process.
RECORDING_MODULE = "torch.fx.experimental.symbolic_shapes"
LAUNCHER_VARIABLE = "HETERPS_LAUNCHER"
POLL_S = 0.05
# How long ranks get to end by themselves before they are killed.
GRACE_S = 10.0
# After a first failure: the others lose their connections, and say so in their logs.
CONSEQUENCES_S = 0.2
# Files of an earlier run in the same directory would be taken for this run's.
_OWN_FILES = (
    "run.json",
    RESULT_FILE,
    "reference.json",
    LOG_FILE,
    "rank-*.log",
    *(f"{name}-*.json" for name in ("plan", "measurements", "error", "result")),
)


class Workers(AbstractContextManager["Workers", None]):
    """The processes of one run on this host, as a context manager: leaving it ends them.

    Args:
        template: Forks them.
        directory: Run directory; the workers' standard error goes to its log file.
        arguments: Of each process.
        environment: Variables of each process.
        world: Its ranks here, whose socket is theirs from then on; None for one process that is no
            rank.
    """

    def __init__(
        self,
        template: Template,
        directory: Path,
        arguments: Sequence[str],
        environment: Mapping[str, str],
        world: World | None = None,
    ) -> None:
        self.directory, self._template = directory, template
        self._lines: queue.Queue[str] = queue.Queue()
        self._processes: dict[int, ForkedProcess] = {}
        self._readers: list[threading.Thread] = []
        self._failed: dict[int, int] = {}
        try:
            for rank in (0,) if world is None else world.ranks:
                own = {} if world is None else world.environment(rank)
                passed = None if world is None else world.passed(rank)
                process = template.fork(
                    arguments, {**environment, **own}, directory / LOG_FILE, passed
                )
                self._processes[rank] = process
                reader = threading.Thread(target=self._read, args=(process,), daemon=True)
                self._readers.append(reader)
                reader.start()
        except BaseException:
            self._end()
            raise
        finally:
            if world is not None:
                world.close()

    def __exit__(self, *raised: object) -> None:
        self._end()

    def wait(
        self,
        on_line: Callable[[dict[str, Any]], None],
        on_poll: Callable[[], None],
        timeout_s: float | None,
        look_at_others: Callable[[], None] = lambda: None,
    ) -> None:
        """Waits for the end of the run.

        Args:
            on_line: Receives every JSON line that a rank prints.
            on_poll: Called again and again in between.
            timeout_s: Longest time of the run.
            look_at_others: Called in between, too; raises what other hosts report.

        Raises:
            HeterpsError: A worker failed, or the time is over.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._running() and not self._failures():
            self._handle_lines(on_line, POLL_S)
            on_poll()
            look_at_others()
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise HeterpsError(
                    f"timeout_s: the run was ended after {timeout_s:g} s; "
                    + log_hint(self.directory)
                )
        if self._failures():
            time.sleep(CONSEQUENCES_S)
            self._failed = self._failures()
        self._end()
        self._handle_lines(on_line, 0.0)
        if self._failed:
            raise self._failure()

    def _running(self) -> list[ForkedProcess]:
        return [process for process in self._processes.values() if process.poll() is None]

    def _failures(self) -> dict[int, int]:
        """Exit codes other than 0, by rank."""
        codes = {rank: process.poll() for rank, process in self._processes.items()}
        return {rank: code for rank, code in codes.items() if code}

    def _read(self, process: ForkedProcess) -> None:
        for line in process.stdout:
            self._lines.put(line)

    def _handle_lines(self, on_line: Callable[[dict[str, Any]], None], wait_s: float) -> None:
        with contextlib.suppress(queue.Empty):
            line = self._lines.get(timeout=wait_s) if wait_s else self._lines.get_nowait()
            while True:
                # Model code may print as well.
                if line.startswith("{"):
                    with contextlib.suppress(json.JSONDecodeError):
                        on_line(json.loads(line))
                line = self._lines.get_nowait()

    def _failure(self) -> HeterpsError:
        """One line: the first rank that failed by itself."""
        cause = first_cause(self.directory)
        if cause is not None:
            return cause
        if not self._template.is_alive():
            hint = log_hint(self.directory)
            return HeterpsError(f"the process that starts the ranks was ended; {hint}")
        killed = min((rank for rank, code in self._failed.items() if code < 0), default=None)
        if killed is not None:
            name = signal.Signals(-self._failed[killed]).name
            hint = log_hint(self.directory, rank_log_path(self.directory, killed))
            return RankError(f"rank {killed} was ended by {name}; {hint}", str(killed))
        errors = errors_of(self.directory)
        if errors:
            first = errors[0]
            hint = log_hint(self.directory, rank_log_path(self.directory, first["rank"]))
            text = f"rank {first['rank']}: {first['message']}; {hint}"
            return LostConnectionError(text, first["rank"])
        code = next(iter(self._failed.values()))
        return HeterpsError(f"the workers ended with code {code}; {log_hint(self.directory)}")

    def _end(self) -> None:
        """Ends what still runs, and waits for it."""
        deadline_s = time.monotonic() + GRACE_S
        for number in (signal.SIGTERM, signal.SIGKILL):
            left = self._running() if self._template.is_alive() else self._processes.values()
            for process in left:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, number)
            for process in self._processes.values():
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline_s - time.monotonic()) + 0.1)
        for reader in self._readers:
            reader.join()


def run_ranks(
    module: str,
    num_ranks: int,
    directory: Path,
    timeout_s: float,
    arguments: Sequence[str] = (),
    on_line: Callable[[dict[str, Any]], None] = lambda line: None,
) -> None:
    """Runs a module's `main([directory, *arguments])` in ranks of this host until they end.

    Args:
        module: With a function `main`.
        num_ranks: How many processes.
        directory: Run directory.
        timeout_s: Longest time of all.
        arguments: After the directory.
        on_line: Receives every JSON line that a rank prints.

    Raises:
        HeterpsError: A rank failed or did not end in time.
    """
    environment = {**worker_environment(1), **gloo_environment(None)}
    world = World.of_this_host(num_ranks)
    with (
        Template(module, environment, directory / LOG_FILE) as template,
        Workers(template, directory, [str(directory), *arguments], environment, world) as workers,
    ):
        workers.wait(on_line, lambda: None, timeout_s)


def run_reference(
    template: Template, directory: Path, environment: Mapping[str, str], timeout_s: float | None
) -> None:
    """Trains the model of a run directory in one process, whose losses the run's must equal.

    Raises:
        HeterpsError: It failed or did not end in time.
    """
    arguments = [str(directory), "--reference"]
    with Workers(template, directory, arguments, environment) as workers:
        workers.wait(lambda line: None, lambda: None, timeout_s)


def prepare_directory(directory: Path) -> None:
    """Makes a run directory, without files of an earlier run.

    Raises:
        HeterpsError: It cannot be created.
    """
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise HeterpsError(f"{directory}: cannot be created: {error.strerror}") from None
    for pattern in _OWN_FILES:
        for path in directory.glob(pattern):
            path.unlink()


def worker_environment(num_threads: int) -> dict[str, str]:
    """What the workers inherit: they find the same modules, and know whom they belong to."""
    paths = [path or os.getcwd() for path in sys.path]
    # What a model's code need not know, it cannot give away.
    own = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}
    return {
        **own,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "OMP_NUM_THREADS": str(num_threads),
        LAUNCHER_VARIABLE: str(os.getpid()),
    }
