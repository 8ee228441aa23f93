"""The launcher: starts torchrun, reads what rank 0 prints, makes one clear error of a failed rank.

On several hosts, each has a launcher, which starts its own ranks
(`heterps_runtime.run.host_group`).

Whatever happens, no process is left behind: torchrun is asked to end its workers, then killed with
its group, and every worker ends itself when its parents are gone.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_configs.errors import HeterpsError
from heterps_runtime.process.rank_log import rank_log_path

LAUNCHER_VARIABLE = "HETERPS_LAUNCHER"
LOG_FILE = "workers.log"
POLL_S = 0.05
# Last lines of the log that an error shows: the folder of a run may be gone by then.
NUM_LOG_LINES = 8
# How long torchrun gets to end its workers before it is killed.
GRACE_S = 10.0
# Files of an earlier run in the same directory would be taken for this run's.
_OWN_FILES = (
    "run.json",
    "reference.json",
    "workers.log",
    "rank-*.log",
    *(f"{name}-*.json" for name in ("plan", "measurements", "error", "result")),
)


class LostConnectionError(HeterpsError):
    """Ranks of this host lost the others; the cause lies on another host."""


@dataclass(frozen=True)
class NodeRank:
    """This host's place among those of one run, as torchrun is told.

    Attributes:
        num_nodes: Hosts of the run.
        rank: This host.
        master_address: Of host 0.
        master_port: A free port there.
    """

    num_nodes: int
    rank: int
    master_address: str
    master_port: int


class Workers(contextlib.AbstractContextManager["Workers", None]):
    """The processes of one run on this host, as a context manager: leaving it ends them.

    Args:
        command: What to start.
        directory: Run directory; the workers' standard error goes to its log file.
        num_threads: Threads of each worker's kernels.
        environment: Variables that the workers get besides.
    """

    def __init__(
        self,
        command: Sequence[str],
        directory: Path,
        num_threads: int = 1,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.directory = directory
        self._lines: queue.Queue[str] = queue.Queue()
        with (directory / LOG_FILE).open("ab") as log:
            # Its own session: an interrupt on the terminal reaches the launcher only, which
            # then ends the workers in order.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                env={**worker_environment(num_threads), **(environment or {})},
            )
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

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
            on_line: Receives every JSON line that rank 0 prints.
            on_poll: Called again and again in between.
            timeout_s: Longest time of the run.
            look_at_others: Called in between, too; raises what other hosts report.

        Raises:
            HeterpsError: A worker failed, or the time is over.
        """
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self._process.poll() is None:
            self._handle_lines(on_line, POLL_S)
            on_poll()
            look_at_others()
            if deadline_s is not None and time.monotonic() > deadline_s:
                raise HeterpsError(f"the run was ended after {timeout_s:g} s; {self._log_hint()}")
        self._reader.join()
        self._handle_lines(on_line, 0.0)
        if self._process.returncode != 0:
            raise self._failure()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self._lines.put(line)

    def _handle_lines(self, on_line: Callable[[dict[str, Any]], None], wait_s: float) -> None:
        with contextlib.suppress(queue.Empty):
            line = self._lines.get(timeout=wait_s) if wait_s else self._lines.get_nowait()
            while True:
                # Model code may print as well.
                if line.startswith("{"):
                    on_line(json.loads(line))
                line = self._lines.get_nowait()

    def _failure(self) -> HeterpsError:
        """One line: the first rank that failed by itself."""
        errors = [json.loads(path.read_text()) for path in self.directory.glob("error-*.json")]
        causes = [error for error in errors if not error["is_lost_connection"]]
        if causes:
            first = min(causes, key=lambda error: error["time_s"])
            where = f"rank {first['rank']}" + (f" ({first['device']})" if first["device"] else "")
            return HeterpsError(f"{where}: {first['message']}")
        killed = _first_failure_of_torchrun((self.directory / LOG_FILE).read_text())
        if killed is not None:
            hint = self._log_hint(rank_log_path(self.directory, killed[0]))
            return HeterpsError(f"rank {killed[0]} was ended by {killed[1]}; {hint}")
        if errors:
            first = min(errors, key=lambda error: error["time_s"])
            hint = self._log_hint(rank_log_path(self.directory, first["rank"]))
            text = f"rank {first['rank']}: {first['message']}; {hint}"
            return LostConnectionError(text)
        code = self._process.returncode
        return HeterpsError(f"the workers ended with code {code}; {self._log_hint()}")

    def _log_hint(self, rank_log: Path | None = None) -> str:
        return log_hint(self.directory, rank_log)

    def _end(self) -> None:
        if self._process.poll() is None:
            self._process.terminate()
            try:
                self._process.wait(GRACE_S)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, signal.SIGKILL)
                self._process.wait()
        self._reader.join()


def log_hint(directory: Path, rank_log: Path | None = None) -> str:
    """The end of a rank's log, or where it has none of the log of all."""
    for name, path in (("its", rank_log), ("the workers'", directory / LOG_FILE)):
        text = path.read_text(errors="replace") if path is not None and path.exists() else ""
        lines = [line for line in text.splitlines() if line.strip()][-NUM_LOG_LINES:]
        if lines:
            return "\n".join([f"{name} log ends with:", *lines])
    return "they left no log"


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


def torchrun_command(
    directory: Path,
    num_processes: int,
    port: int | None = None,
    module: str = "heterps_runtime.run.worker",
    node: NodeRank | None = None,
) -> list[str]:
    """The command that starts the workers of a run directory on this host.

    Args:
        directory: Argument of `module`.
        num_processes: Ranks on this host; hosts may have different numbers of them.
        port: Of the rendezvous; by default a free one.
        module: What each worker executes.
        node: Where there are several hosts.

    Raises:
        HeterpsError: The port is in use.
    """
    if port is not None:
        _check_port(port)
    meeting = [
        "--rdzv-backend=c10d",
        f"--rdzv-endpoint=127.0.0.1:{port or 0}",
        "--local-addr=127.0.0.1",
    ]
    if node is not None:
        meeting = [
            f"--nnodes={node.num_nodes}",
            f"--node-rank={node.rank}",
            f"--master-addr={node.master_address}",
            f"--master-port={node.master_port}",
        ]
    return [
        sys.executable,
        "-m",
        "torch.distributed.run",
        f"--nproc-per-node={num_processes}",
        *meeting,
        "--max-restarts=0",
        "-m",
        module,
        str(directory),
    ]


def reference_command(directory: Path) -> list[str]:
    """The command that trains the model of a run directory in one process."""
    return [sys.executable, "-m", "heterps_runtime.run.worker", str(directory), "--reference"]


def _check_port(port: int) -> None:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except (OSError, OverflowError) as error:
            reason = "in use" if isinstance(error, OSError) else "not a port"
            raise HeterpsError(
                f"port {port} is {reason}; leave the port out to take a free one"
            ) from None


def worker_environment(num_threads: int) -> dict[str, str]:
    """What the workers inherit: they find the same modules, and know whom they belong to."""
    paths = [path or os.getcwd() for path in sys.path]
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
        "OMP_NUM_THREADS": str(num_threads),
        LAUNCHER_VARIABLE: str(os.getpid()),
    }


def _first_failure_of_torchrun(log: str) -> tuple[str, str] | None:
    """(rank, signal) of the root cause in torchrun's own report, where a signal ended it."""
    cause = log.rpartition("Root Cause")[2]
    rank = re.search(r"rank\s*:\s*(\d+)", cause)
    code = re.search(r"exitcode\s*:\s*-(\d+)", cause)
    if rank is None or code is None:
        return None
    return rank[1], signal.Signals(int(code[1])).name
