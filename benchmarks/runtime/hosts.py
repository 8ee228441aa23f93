"""Two hosts of a run: how soon one notices that the other has gone, and what that costs a run.

    python benchmarks/runtime/hosts.py
    python benchmarks/runtime/hosts.py --quick --json hosts.json

Two network namespaces that a cable joins, three emulated devices on them. In mid-run all processes
of a host are killed at once, or the cable is cut. Seconds until the other host says so: runs that
are not elastic say it when their own ranks are ended, too. Last, recoveries: from the fault to the
end of the first new step, of a killed rank, where all ranks are on one host and where it is on
another one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import statistics
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.shared.common import parse_options, report
from heterps_runtime.state.checkpoint_files import complete_checkpoints
from tests.runtime.networks import Network, cut_cable, free_port, network, start
from tests.runtime.processes import processes_of, ranks_of
from tests.runtime.runs_on_hosts import plan_file, start_run

REPEATS = 3
LIMIT_S = 90.0
STEP_S = 0.04
SLOWDOWNS = (1.0, 1.0, 1.0, 1.0)
HAS_GONE = ("host 0", "host 1", "its host has gone", "no sign of life")
CASES = {
    "host 1 is killed": (False, "host 1", 0),
    "host 0 is killed": (False, "host 0", 1),
    "host 1 is killed, elastic": (True, "host 1", 0),
    "host 0 is killed, elastic": (True, "host 0", 1),
    "the cable is cut": (False, "cable", 0),
    "the cable is cut, elastic": (True, "cable", 0),
}


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    repeats = 1 if options.quick else REPEATS
    rows: list[dict[str, Any]] = []
    for name, case in CASES.items():
        seconds = [noticed_s(*case) for _ in range(repeats)]
        rows.append(_row(name, seconds))
    for name, hosts in (("one host", 1), ("two hosts", 2)):
        rows.append(_row(f"a rank is killed, {name}", [recovery_s(hosts) for _ in range(repeats)]))
    report("Two hosts", rows, {"repeats": repeats}, options)


def _row(name: str, seconds: list[float]) -> dict[str, Any]:
    return {"what": name, "median_s": statistics.median(seconds), "worst_s": max(seconds)}


class Site:
    """A run on two hosts, in its 15th step or later.

    Args:
        hosts: Where.
        folder: Of its files.
        options: More of `heterps run`.
    """

    def __init__(self, hosts: Network, folder: Path, *options: str) -> None:
        self.hosts, self.folder = hosts, folder
        self.agent = folder / "run" / "host-1"
        plan, port = plan_file(folder, slowdowns=SLOWDOWNS, step_s=STEP_S), free_port()
        given = (*saving(folder), *options)
        self.processes = [start_run(hosts, plan, rank, port, *given) for rank in range(2)]
        self.lines: list[queue.Queue[tuple[float, str]]] = [follow(p) for p in self.processes]
        wait_until(lambda: len(complete_checkpoints(folder / "saved")) > 1)

    def kill(self, rank: int) -> None:
        """All processes of a host at once."""
        others = {found.pid for found in processes_of(self.agent)} | {self.processes[1].pid}
        every = {found.pid for found in processes_of(self.folder)} | {self.processes[rank].pid}
        for pid in others if rank == 1 else every - others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def end(self) -> None:
        """Whatever its state."""
        for rank in (0, 1):
            self.kill(rank)
        for process in self.processes:
            process.wait()


def saving(folder: Path) -> tuple[str, ...]:
    """Options that save every few steps."""
    settings = folder / "settings.yaml"
    settings.write_text("checkpoint: {every: 5}\n")
    return "--checkpoint", str(folder / "saved"), "--settings", str(settings)


def follow(process: subprocess.Popen[str]) -> queue.Queue[tuple[float, str]]:
    """Its remarks, each with the time at which it came."""
    found: queue.Queue[tuple[float, str]] = queue.Queue()

    def read() -> None:
        assert process.stderr is not None
        for line in process.stderr:
            found.put((time.monotonic(), line))

    threading.Thread(target=read, daemon=True).start()
    return found


def noticed_s(is_elastic: bool, fault: str, watcher: int) -> float:
    """Seconds from a fault until a host says that the other has gone.

    Args:
        is_elastic: Whether the run is.
        fault: Which host is killed, or the cable.
        watcher: The host that is listened to.
    """
    options = ("--steps", "1000000", *(["--elastic"] if is_elastic else []))
    with network() as hosts, tempfile.TemporaryDirectory() as folder:
        site = Site(hosts, Path(folder), *options)
        try:
            began_s = time.monotonic()
            if fault == "cable":
                cut_cable(hosts)
            else:
                site.kill(int(fault == "host 1"))
            return said_s(site.lines[watcher], began_s) - began_s
        finally:
            site.end()


def said_s(lines: queue.Queue[tuple[float, str]], began_s: float) -> float:
    """When the first remark came that tells of the fault."""
    while True:
        at_s, line = lines.get(timeout=LIMIT_S)
        if at_s > began_s and any(sign in line for sign in HAS_GONE):
            return at_s


def recovery_s(num_hosts: int) -> float:
    """Pause of an elastic run whose last rank is killed in mid-run."""
    with network() as hosts, tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        options = ("--steps", "120", "--elastic", "--json")
        if num_hosts == 2:
            site = Site(hosts, folder, *options)
            first, agent = site.processes[0], site.agent
        else:
            plan, agent = plan_file(folder, slowdowns=SLOWDOWNS, step_s=STEP_S), folder / "run"
            command = ("-m", "heterps", "run", str(plan), "--trust-code", "--run-directory")
            first = start(hosts.hosts[0], *command, str(agent), *saving(folder), *options)
            follow(first)
            wait_until(lambda: len(complete_checkpoints(folder / "saved")) > 1)
        os.kill(ranks_of(agent)["d2"], signal.SIGKILL)
        assert first.stdout is not None
        (recovery,) = json.loads(first.stdout.read())["recoveries"]
        first.wait()
        if num_hosts == 2:
            site.end()
        return float(recovery["pause_s"])


def wait_until(is_done: Callable[[], bool]) -> None:
    """Returns when something has come true.

    Raises:
        TimeoutError: It does not.
    """
    deadline_s = time.monotonic() + LIMIT_S
    while not is_done():
        if time.monotonic() > deadline_s:
            raise TimeoutError
        time.sleep(0.02)


if __name__ == "__main__":
    main()
