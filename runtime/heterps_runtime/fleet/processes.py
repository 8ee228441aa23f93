"""The processes of an elastic run, one for each device: starting, watching and ending them.

Where a process runs, its *place* knows: this host (`heterps_runtime.fleet.local`) or another one
(`heterps_runtime.fleet.remote`).
"""

from __future__ import annotations

import contextlib
import queue
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from signal import SIGKILL, Signals
from typing import Any, NamedTuple

from heterps_runtime.fleet.worker_settings import WorkerSettings

# In place of an exit code: nobody will ever say how the process has ended.
LOST_HOST = 1000


class Line(NamedTuple):
    """What a process has said."""

    device: str
    content: dict[str, Any]


Say = Callable[[Line], None]


class DeviceProcess(ABC):
    """The process of a device.

    Attributes:
        pid: Its number on its host; 0 until that is known.
    """

    pid: int = 0

    @abstractmethod
    def code(self) -> int | None:
        """How it has ended, as `subprocess` says it, or `LOST_HOST`; None while it runs."""

    @abstractmethod
    def is_gone(self) -> bool:
        """Whether nothing is left of it."""

    def is_stopped(self) -> bool:
        """Whether it is known to be stopped by a signal: it does nothing, not even slowly."""
        return False

    @abstractmethod
    def signal(self, number: Signals) -> None:
        """Sends a signal to it and its children."""

    @abstractmethod
    def wait(self) -> None:
        """Returns when nothing is left of it."""


class Place(contextlib.AbstractContextManager["Place", None], ABC):
    """A host, as the supervisor sees it; leaving the context ends what was started there.

    Attributes:
        devices: That may run there.
    """

    devices: tuple[str, ...]

    @abstractmethod
    def start(self, settings: WorkerSettings, say: Say) -> DeviceProcess:
        """Starts the process of a device.

        Args:
            settings: What it is told.
            say: Receives its lines, in another thread.
        """

    def has_come_back(self) -> bool:
        """Whether the host was lost and is there again, since the last call."""
        return False


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
    process: DeviceProcess
    is_ready: bool = False
    is_warm: bool = False
    fault_s: float | None = None
    beat: str = ""
    beat_at_s: float = 0.0
    is_standby: bool = False


class Processes(contextlib.AbstractContextManager["Processes", None]):
    """The processes of a run, as a context manager: leaving it ends them all.

    Args:
        places: Where they run; each is left here.

    Attributes:
        places: The same; more may come.
        members: Processes by device.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = list(places)
        self._lines: queue.Queue[Line] = queue.Queue()
        self.members: dict[str, Member] = {}
        self._dying: list[Member] = []

    def __exit__(self, *raised: object) -> None:
        for device in list(self.members):
            self.remove(device)
        for member in self._dying:
            member.process.wait()
        for place in self.places:
            place.__exit__(None, None, None)

    def start(self, settings: WorkerSettings) -> None:
        """Starts the process of a device that has none."""
        device = settings.device
        assert device not in self.members
        (place,) = (each for each in self.places if device in each.devices)
        self.members[device] = Member(
            device,
            place.start(settings, self._lines.put),
            beat_at_s=time.monotonic(),
            is_standby=settings.is_standby,
        )

    def lines(self, wait_s: float) -> Iterable[Line]:
        """What was said since the last call; waits a moment for the first line."""
        with contextlib.suppress(queue.Empty):
            yield self._lines.get(timeout=wait_s)
            while True:
                yield self._lines.get_nowait()

    def ended(self) -> list[tuple[Member, int]]:
        """Processes that have ended, with their codes as `DeviceProcess.code` has them."""
        codes = ((member, member.process.code()) for member in self.members.values())
        return [(member, code) for member, code in codes if code is not None]

    def running(self) -> list[Member]:
        """Processes that have not ended."""
        return [member for member in self.members.values() if not member.process.is_gone()]

    def come_back(self) -> list[str]:
        """Devices without a process whose host was lost and is there again."""
        found = (place.devices for place in self.places if place.has_come_back())
        return [device for devices in found for device in devices if device not in self.members]

    def is_starting_beside(self, devices: Collection[str]) -> bool:
        """Whether, on the host of any of some devices, a process is not ready yet."""
        hosts = [
            place.devices for place in self.places if not set(devices).isdisjoint(place.devices)
        ]
        own = [self.members[name] for names in hosts for name in names if name in self.members]
        return not all(member.is_ready for member in own)

    def signal(self, device: str, number: Signals) -> None:
        """Sends a signal to a process and its children."""
        self.members[device].process.signal(number)

    def remove(self, device: str) -> None:
        """Ends a process, whatever its state, and forgets it; the system may take its time."""
        self.signal(device, SIGKILL)
        self._dying.append(self.members.pop(device))
        self._dying = [member for member in self._dying if not member.process.is_gone()]
