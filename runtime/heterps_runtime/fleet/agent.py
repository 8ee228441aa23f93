"""The part of a host that is not host 0 in an elastic run: it does what host 0 asks for.

It starts processes of its devices, tells what they say and how they end, and ends with host 0.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from signal import SIGKILL, Signals
from typing import Any

from heterps_configs.errors import HeterpsError
from heterps_runtime.fleet.local import LocalPlace
from heterps_runtime.fleet.messages import Farewell, Joining, Order, Signal, Start, Told, Welcome
from heterps_runtime.fleet.others import SERVICE, STORE
from heterps_runtime.fleet.processes import DeviceProcess, Line, Place
from heterps_runtime.network.dial import dial_patiently
from heterps_runtime.network.lines import Lines
from heterps_runtime.network.tunnel import Tunnel
from heterps_runtime.run.launcher import prepare_directory
from heterps_runtime.specification.hosts import Hosts, machine_identity
from heterps_runtime.specification.run import SPECIFICATION_FILE, RunSpecification
from heterps_runtime.specification.trust import check_sent

# Between two looks at the processes; their ends are to be noticed as soon as on host 0.
LOOK_S = 0.005
_FILES = ("error-*.json", "result-*.json", "measurements-*.json")


class LostHostError(HeterpsError):
    """Host 0 has gone, and the run with it."""


def serve_host(
    hosts: Hosts,
    facts: Mapping[str, str],
    directory: Path,
    on_message: Callable[[str], None],
) -> None:
    """Takes part until the run is over.

    Args:
        hosts: Of the run.
        facts: What must be equal on all hosts, by the name that an error shows.
        directory: Run directory of this host; it need not be shared.
        on_message: Receives what is waited for.

    Raises:
        LostHostError: Host 0 has gone.
        UntrustedCodeError: It runs a model that is code, and not the one that this host trusts.
        HeterpsError: It does not come, has another secret or runs something else; or the run has
            failed.
    """
    hello = {"service": SERVICE, "host": hosts.rank}
    connection = dial_patiently(hosts.host_0, hello, hosts.timeout_s, on_message)
    try:
        on_message(f"connected to host 0 at {hosts.host_0}")
        lines = Lines(connection)
        failure = _take_part(
            hosts, lines, Joining(facts=facts, machine=machine_identity()), directory
        )
    except OSError as error:
        raise LostHostError(f"host 0 ({hosts.host_0}) has gone: {error}") from None
    finally:
        connection.close()
        connection.release()
    if failure:
        raise HeterpsError(f"host 0: {failure}")


def _take_part(hosts: Hosts, lines: Lines, joining: Joining, directory: Path) -> str:
    """Does what host 0 asks for; returns why the run has failed, or nothing."""
    lines.send(joining.model_dump())
    words = iter(lines)
    welcome = Welcome.from_mapping(next(words, None), "host 0")
    if welcome.refusal:
        return welcome.refusal
    specification = check_sent(RunSpecification.from_json(welcome.specification))
    prepare_directory(directory)
    specification.to_json_file(directory / SPECIFICATION_FILE)
    with ExitStack() as stack:
        place = stack.enter_context(LocalPlace((), directory, welcome.num_threads, hosts))
        tunnel = stack.enter_context(Tunnel(hosts.host_0, STORE))
        agent = stack.enter_context(_Agent(lines, place, tunnel.port, directory))
        return agent.obey(words)


class _Agent(contextlib.AbstractContextManager["_Agent", None]):
    """The processes of this host, by their tickets."""

    def __init__(self, lines: Lines, place: Place, port: int, directory: Path) -> None:
        self._lines, self._place, self._port, self._directory = lines, place, port, directory
        self._processes: dict[int, DeviceProcess] = {}
        self._lock = threading.Lock()
        self._sent: dict[str, int] = {}
        self._is_over = threading.Event()
        threading.Thread(target=self._watch, daemon=True).start()

    def __exit__(self, *raised: object) -> None:
        self._is_over.set()
        with self._lock:
            left = list(self._processes.values())
        for process in left:
            process.signal(SIGKILL)
        for process in left:
            process.wait()

    def obey(self, words: Iterator[dict[str, Any]]) -> str:
        """Carries out orders until the farewell; returns why the run has failed, or nothing.

        Raises:
            OSError: Host 0 has gone.
        """
        for content in words:
            order = Order.from_mapping(content, "host 0").order
            if isinstance(order, Farewell):
                return order.failure
            if isinstance(order, Start):
                self._start(order)
            else:
                self._signal(order)
        raise ConnectionError("it has ended without a word")

    def _start(self, order: Start) -> None:
        ticket = order.ticket
        is_told = threading.Event()

        def say(line: Line) -> None:
            is_told.wait()
            if line.content.get("is_done") or "step_time_s" in line.content:
                # Results, or what an online run learns from.
                self._send_files(ticket)
            self._tell(Told(ticket=ticket, line=line.content))

        process = self._place.start(order.settings.changed(port=self._port), say)
        self._tell(Told(ticket=ticket, pid=process.pid))
        is_told.set()
        with self._lock:
            self._processes[ticket] = process

    def _signal(self, order: Signal) -> None:
        with self._lock:
            process = self._processes.get(order.ticket)
        if process is not None:
            process.signal(Signals(order.number))

    def _watch(self) -> None:
        """Tells the ends of processes."""
        while not self._is_over.wait(LOOK_S):
            with self._lock:
                ends = {ticket: process.code() for ticket, process in self._processes.items()}
            for ticket, code in ends.items():
                if code is None:
                    continue
                with self._lock:
                    process = self._processes.pop(ticket)
                if code >= 0:
                    # It has ended by itself: what it left comes first.
                    process.wait()
                    self._send_files(ticket)
                self._tell(Told(ticket=ticket, code=code))

    def _send_files(self, ticket: int) -> None:
        """Files that are new or have changed."""
        for pattern in _FILES:
            for path in self._directory.glob(pattern):
                changed_ns = path.stat().st_mtime_ns
                if self._sent.get(path.name) != changed_ns:
                    self._sent[path.name] = changed_ns
                    self._tell(Told(ticket=ticket, file=path.name, text=path.read_text()))

    def _tell(self, told: Told) -> None:
        with contextlib.suppress(OSError):  # who hears host 0 notices that it has gone
            self._lines.send(told.model_dump(exclude_defaults=True))
