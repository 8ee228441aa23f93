"""The clock of a device: the host's on a CPU, events of the stream on a GPU.

What an observer does between two moments takes time of the host. On a CPU the clock stands
meanwhile. A GPU that is behind the host does not notice; one that waits for the host's launches
waits for the observer, too, and that is taken off.
"""

from __future__ import annotations

import time
from typing import Any, NamedTuple

import torch

# Of a GPU, so many that no step of an optimizer takes its host longer to launch: some milliseconds.
_BUSY_CYCLES = 10_000_000

Moment = Any  # a float on a CPU, a `DeviceMoment` on a GPU


class DeviceMoment(NamedTuple):
    """A moment of a GPU.

    Attributes:
        event: When the work that was launched so far is done.
        host_s: When the host recorded it.
        observed_s: What the observer had taken of the host until then.
        idle: A moment when the device had nothing to do; None for that moment itself.
    """

    event: Any
    host_s: float
    observed_s: float
    idle: DeviceMoment | None

    def seconds_until(self, end: DeviceMoment) -> float:
        """By the device."""
        return float(self.event.elapsed_time(end.event)) / 1e3

    @property
    def lag_s(self) -> float:
        """How far the device is behind the host."""
        if self.idle is None:
            return 0.0
        return self.idle.seconds_until(self) - (self.host_s - self.idle.host_s)


class Stopwatch:
    """Takes moments while work is launched, and tells seconds between them afterwards.

    Args:
        device: `cpu` or `cuda:N`.

    Attributes:
        is_cuda: Whether it is a GPU's.
    """

    def __init__(self, device: str) -> None:
        self._device = torch.device(device)
        self.is_cuda = self._device.type == "cuda"
        self._paused_s, self._pause_began_s = 0.0, 0.0
        self._idle: DeviceMoment | None = None

    def now(self) -> Moment:
        """This moment; on a GPU, when the work that was launched so far is done."""
        if not self.is_cuda:
            return time.perf_counter() - self._paused_s
        if self._idle is None:
            self.synchronize()
        return self._recorded()

    def pause(self) -> None:
        """The observer's own work begins: it does not count."""
        self._pause_began_s = time.perf_counter()

    def resume(self) -> None:
        """The observer's own work is over: time counts again."""
        self._paused_s += time.perf_counter() - self._pause_began_s

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.is_cuda:
            self._wait()
            self._idle = None
            self._idle = self._recorded()

    def fall_behind(self) -> None:
        """Keeps a GPU busy while its host launches a little more: only the device's time counts."""
        if self.is_cuda:
            torch.cuda._sleep(_BUSY_CYCLES)  # type: ignore[no-untyped-call]

    def launch_seconds(self, start: Moment, end: Moment, observed_s: float = 0.0) -> float:
        """What the host took between two moments; see `seconds`."""
        if not self.is_cuda:
            return self.seconds(start, end, observed_s)
        observed_s += end.observed_s - start.observed_s
        return float(max(end.host_s - start.host_s - observed_s, 0.0))

    def seconds(self, start: Moment, end: Moment, observed_s: float = 0.0) -> float:
        """From one moment to another; on a GPU only after `synchronize`.

        Args:
            start: The first.
            end: The second.
            observed_s: What the observer took of the host in between, outside of its pauses.
        """
        if not self.is_cuda:
            return float(end - start) - observed_s
        device_s = start.seconds_until(end)
        # The device had work from before for as long as it was behind; then it may have waited.
        idle_s = max(device_s - max(start.lag_s, 0.0), 0.0)
        observed_s += end.observed_s - start.observed_s
        return float(max(device_s - min(observed_s, idle_s), 0.0))

    def _recorded(self) -> DeviceMoment:
        host_s, observed_s = time.perf_counter(), self._paused_s
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        self._paused_s += time.perf_counter() - host_s
        return DeviceMoment(event, host_s, observed_s, self._idle)

    def _wait(self) -> None:
        torch.cuda.synchronize(self._device)
