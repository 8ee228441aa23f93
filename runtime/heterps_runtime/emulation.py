"""Emulated devices and links: computing and sending are real, time is stretched to a target.

An emulated device computes for real and then sleeps to a *virtual deadline*. Its virtual time is
when the emulated device would be free; every action begins at the later of that and the arrival of
its data, and ends its target later. What the host needs on top (Python, waking up) is absorbed as
long as the host is faster than the device. Where it is not, the action overruns: it is counted, and
the following actions pay it back. An emulated link works by the sender's stamp: the time at which
the message would arrive travels with it. All processes of a host share one monotonic clock.

Nothing measured on emulated devices is a hardware result.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple, Protocol

from heterps_runtime.run_specification import EmulatedLink

# A wake-up this late is the host's timer, not a device that is too slow.
TOLERATED_LATENESS_S = 1e-4


class Span(NamedTuple):
    """From when to when an action took the device, in seconds of `time.perf_counter`."""

    start_s: float
    end_s: float


class Clock(Protocol):
    """When the actions of one device begin and end, in seconds of `time.perf_counter`."""

    num_actions: int
    num_overruns: int
    worst_overrun_s: float

    @property
    def now_s(self) -> float:
        """The device's time: when it is free."""
        ...

    def start_step(self, start_s: float) -> None:
        """A step begins at `start_s`."""
        ...

    def wait_until(self, time_s: float) -> None:
        """The device waits for data that arrive at `time_s`."""
        ...

    def begin(self) -> None:
        """The device begins an action."""
        ...

    def forget_overruns(self) -> None:
        """Counts anew, after the warm-up."""
        ...

    def finish(self, target_s: float) -> Span:
        """The host has computed the action; returns when the device is done with it."""
        ...


class HostClock:
    """A device that is not emulated: its time is the host's."""

    num_actions = 0
    num_overruns = 0
    worst_overrun_s = 0.0

    def __init__(self) -> None:
        self._began_s = 0.0

    @property
    def now_s(self) -> float:
        """The host's time."""
        return time.perf_counter()

    def start_step(self, start_s: float) -> None:
        """Nothing to prepare."""

    def wait_until(self, time_s: float) -> None:
        """Sleeps until an emulated link delivers."""
        _sleep_until(time_s)

    def begin(self) -> None:
        """The action begins now."""
        self._began_s = time.perf_counter()

    def forget_overruns(self) -> None:
        """There are none."""

    def finish(self, target_s: float) -> Span:
        """The action ends now."""
        return Span(self._began_s, time.perf_counter())


class EmulatedClock:
    """A device whose actions end at virtual deadlines.

    Attributes:
        num_actions: Actions that had a target.
        num_overruns: Actions that the host finished after their deadline.
        worst_overrun_s: The longest delay behind a deadline.
    """

    def __init__(self) -> None:
        self.num_actions, self.num_overruns, self.worst_overrun_s = 0, 0, 0.0
        self._free_s, self._began_s = 0.0, 0.0

    @property
    def now_s(self) -> float:
        """When the emulated device is free."""
        return self._free_s

    def start_step(self, start_s: float) -> None:
        """Virtual time begins at `start_s`, the same for all ranks."""
        self._free_s = start_s

    def wait_until(self, time_s: float) -> None:
        """The device is idle until `time_s`; the host need not sleep yet."""
        self._free_s = max(self._free_s, time_s)

    def begin(self) -> None:
        """The host begins; for the device the action begins when it is free."""
        self._began_s = time.perf_counter()

    def forget_overruns(self) -> None:
        """Counts anew."""
        self.num_actions, self.num_overruns, self.worst_overrun_s = 0, 0, 0.0

    def finish(self, target_s: float) -> Span:
        """Sleeps to the virtual deadline, and counts an overrun where it has passed already.

        Returns:
            Virtual start and end; the end shows what the host took where that was longer.
        """
        start_s, computed_s = self._free_s, time.perf_counter()
        end_s = start_s + target_s
        self.num_actions += 1
        if computed_s > end_s + TOLERATED_LATENESS_S:
            self.num_overruns += 1
            self.worst_overrun_s = max(self.worst_overrun_s, computed_s - end_s)
        _sleep_until(end_s)
        self._free_s = end_s
        return Span(start_s, max(end_s, start_s + computed_s - self._began_s))


class EmulatedLinks:
    """The outgoing links of one device; each carries one message at a time, in order."""

    def __init__(self, device: str, links: Iterable[EmulatedLink]) -> None:
        self._links = {link.destination: link for link in links if link.source == device}
        self._free_s: dict[str, float] = defaultdict(float)

    def arrival_s(self, destination: str, num_bytes: int, departure_s: float) -> float:
        """When a message arrives that is handed to the link at `departure_s`."""
        link = self._links[destination]
        start_s = max(departure_s, self._free_s[destination])
        self._free_s[destination] = start_s + num_bytes * link.s_per_byte
        return self._free_s[destination] + link.latency_s


def _sleep_until(time_s: float) -> None:
    delay_s = time_s - time.perf_counter()
    if delay_s > 0:
        time.sleep(delay_s)
