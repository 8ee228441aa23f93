"""Processes on another host, seen from host 0."""

from __future__ import annotations

import contextlib
import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from signal import Signals
from typing import Any

from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_runtime.fleet.messages import Farewell, Order, Signal, Start, Told
from heterps_runtime.fleet.processes import LOST_HOST, DeviceProcess, Line, Place, Say
from heterps_runtime.fleet.worker_settings import WorkerSettings
from heterps_runtime.network.lines import Lines

# Of a process that was killed; its host says so in milliseconds.
WAIT_S = 5.0
# Readings of `time.monotonic` in what a process says.
_CLOCK_READINGS = ("sent_s", "at_s")


class RemotePlace(Place):
    """Another host, whether it is connected or not.

    Args:
        devices: That may run there.
        directory: Run directory of this host, for files that processes leave.
    """

    def __init__(self, devices: Sequence[str], directory: Path) -> None:
        self.devices = tuple(devices)
        self._directory, self._lock = directory, threading.Lock()
        self._tickets = itertools.count()
        self._processes: dict[int, RemoteProcess] = {}
        self._lines: Lines | None = None
        self._has_same_clock = True
        self._was_lost = self._has_come_back = False

    @property
    def is_there(self) -> bool:
        """Whether it is connected."""
        return self._lines is not None

    def begin(self, lines: Lines, *, has_same_clock: bool) -> None:
        """The host has come; from here on it may be asked for processes.

        Args:
            lines: To it.
            has_same_clock: Whether it runs on the machine of this process.
        """
        with self._lock:
            assert self._lines is None
            self._lines, self._has_same_clock = lines, has_same_clock
            self._has_come_back = self._was_lost

    def hear(self, words: Iterator[dict[str, Any]]) -> None:
        """Hears what it says until its end."""
        try:
            with contextlib.suppress(OSError, HeterpsError):
                for content in words:
                    self._take(Told.from_mapping(content, "another host"))
        finally:
            with self._lock:
                self._lines, self._was_lost = None, True
                lost, self._processes = self._processes, {}
            for process in lost.values():
                process.end(LOST_HOST)

    def start(self, settings: WorkerSettings, say: Say) -> RemoteProcess:
        """Asks for it."""
        with self._lock:
            ticket = next(self._tickets)
            process = RemoteProcess(self, ticket, settings.device, say)
            if self._lines is None:
                process.end(LOST_HOST)
                return process
            self._processes[ticket] = process
        self.send(Start(ticket=ticket, settings=settings))
        return process

    def has_come_back(self) -> bool:
        """Whether it was lost and is there again, since the last call."""
        with self._lock:
            found, self._has_come_back = self._has_come_back, False
            return found

    def send(self, order: Start | Signal | Farewell) -> None:
        """Sends an order; where the host is lost, whoever hears it notices."""
        lines = self._lines
        if lines is not None:
            with contextlib.suppress(OSError):
                lines.send(Order(order=order).model_dump())

    def __exit__(self, *raised: object) -> None:
        """All that is to be said at the end `heterps_runtime.fleet.others` says."""

    def _take(self, told: Told) -> None:
        with self._lock:
            process = self._processes.get(told.ticket)
            if told.code is not None:
                self._processes.pop(told.ticket, None)
        if process is None:
            return
        if told.pid is not None:
            process.pid = told.pid
        if told.file is not None:
            write_text(self._directory / told.file, told.text)
        if told.line is not None:
            process.say(self._on_this_clock(told.line))
        if told.code is not None:
            process.end(told.code)

    def _on_this_clock(self, line: Mapping[str, Any]) -> dict[str, Any]:
        """With the clock readings of another machine as this one's, but for the way here."""
        shift_s = 0.0
        if not self._has_same_clock and "sent_s" in line:
            shift_s = time.monotonic() - float(line["sent_s"])
        return {
            name: value + shift_s if name in _CLOCK_READINGS else value
            for name, value in line.items()
        }


class RemoteProcess(DeviceProcess):
    """One of them.

    Args:
        place: Its host.
        ticket: By which the hosts speak of it.
        device: Whose part it plays.
        say: Receives its lines.
    """

    def __init__(self, place: RemotePlace, ticket: int, device: str, say: Say) -> None:
        self._place, self._ticket, self._device, self._say = place, ticket, device, say
        self._ended, self._code = threading.Event(), 0

    def say(self, content: dict[str, Any]) -> None:
        """It has said something."""
        self._say(Line(self._device, content))

    def end(self, code: int) -> None:
        """It has ended."""
        self._code = code
        self._ended.set()

    def code(self) -> int | None:
        """As its host says."""
        return self._code if self._ended.is_set() else None

    def is_gone(self) -> bool:
        """As its host says."""
        return self._ended.is_set()

    def signal(self, number: Signals) -> None:
        """Asks for it."""
        if not self._ended.is_set():
            self._place.send(Signal(ticket=self._ticket, number=int(number)))

    def wait(self) -> None:
        """Until its host says so; not for ever, since a host may vanish."""
        self._ended.wait(WAIT_S)
