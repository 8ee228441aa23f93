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
from typing import NamedTuple, Protocol, Self

from heterps_runtime.specification.run import EmulatedLink, RunSpecification

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
        """Nothing to forget: only emulated devices overrun."""

    def finish(self, target_s: float) -> Span:
        """The action ends now."""
        return Span(self._began_s, time.perf_counter())


class EmulatedClock:
    """A device whose actions end at virtual deadlines.

    Attributes:
        num_actions: Actions that had a target.
        num_overruns: Actions that the host finished after their deadline.
        worst_overrun_s: The longest delay after a deadline.
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
        """Counts overruns anew from here on."""
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
    """The outgoing links of one device; each carries one message at a time, in order.

    Args:
        device: The sender.
        links: Of all pairs of devices.

    Attributes:
        reduce_s: Seconds of the all-reduce of every bucket, at this step.
    """

    def __init__(self, device: str, links: Iterable[EmulatedLink]) -> None:
        self._links = {(link.source, link.destination): link for link in links}
        self._slowed = self._links
        self._device = device
        self._free_s: dict[str, float] = defaultdict(float)
        self._specification: RunSpecification | None = None
        self._factors: dict[tuple[str, str], float] = {}
        self._lane_of: dict[str, str] = {}
        self.reduce_s: list[float] = []

    @classmethod
    def of(cls, specification: RunSpecification, device: str) -> Self:
        """With the slowdowns and the buckets of a run whose devices are emulated."""
        assert specification.emulation is not None
        links = cls(device, specification.emulation.links)
        links._specification = specification
        # Copies to the devices of one group follow each other.
        groups = specification.memberships.items()
        links._lane_of = {device: member.devices[0] for device, member in groups}
        links.reduce_s = list(specification.emulation.reduce_s)
        return links

    def start_step(self, step: int) -> None:
        """Takes the slowdowns of a step."""
        specification = self._specification
        if specification is None or not specification.slowdowns:
            return
        factors = specification.link_slowdowns(step)
        if factors == self._factors:
            return
        self._factors = factors
        self._slowed = {
            ends: link.changed(
                latency_s=link.latency_s * factors.get(ends, 1.0),
                s_per_byte=link.s_per_byte * factors.get(ends, 1.0),
            )
            for ends, link in self._links.items()
        }
        assert specification.emulation is not None
        seconds = specification.emulation.reduce_s
        # In place: who waits for the sums holds the list.
        self.reduce_s[:] = [
            self._slowed_reduce_s(bucket.devices, reduce_s)
            for bucket, reduce_s in zip(specification.buckets, seconds, strict=True)
        ]

    def arrival_s(self, destination: str, num_bytes: int, departure_s: float) -> float:
        """When a message arrives that is handed to the link at `departure_s`."""
        link = self._slowed[self._device, destination]
        lane = self._lane_of.get(destination, destination)
        start_s = max(departure_s, self._free_s[lane])
        self._free_s[lane] = start_s + num_bytes * link.s_per_byte
        return self._free_s[lane] + link.latency_s

    def _slowed_reduce_s(self, devices: tuple[str, ...], reduce_s: float) -> float:
        """A ring goes at the pace of its slowest link (`reduce_buckets.reduce_s`)."""
        ring = list(zip(devices, devices[1:] + devices[:1], strict=True))
        before, after = ([links[ends] for ends in ring] for links in (self._links, self._slowed))
        turns = 2 * (len(devices) - 1)
        slowest = max(link.s_per_byte for link in before)
        own_s = reduce_s / turns - max(link.latency_s for link in before)
        share_s = own_s * max(link.s_per_byte for link in after) / slowest if slowest > 0 else 0.0
        return turns * (max(link.latency_s for link in after) + share_s)


def _sleep_until(time_s: float) -> None:
    delay_s = time_s - time.perf_counter()
    if delay_s > 0:
        time.sleep(delay_s)
