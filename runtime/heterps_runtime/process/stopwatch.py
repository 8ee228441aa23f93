"""The clock of a device: the host's on a CPU, events of the stream on a GPU."""

from __future__ import annotations

import time
from typing import Any

import torch

Moment = Any  # a float on a CPU, a torch.cuda.Event on a GPU


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

    def now(self) -> Moment:
        """This moment; on a GPU, when the work that was launched so far is done."""
        if not self.is_cuda:
            return time.perf_counter() - self._paused_s
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(self._device))
        return event

    def pause(self) -> None:
        """The observer's own work begins: on a CPU it does not count."""
        self._pause_began_s = time.perf_counter()

    def resume(self) -> None:
        """The observer's own work is over: time counts again."""
        self._paused_s += time.perf_counter() - self._pause_began_s

    def synchronize(self) -> None:
        """Waits for the device."""
        if self.is_cuda:
            torch.cuda.synchronize(self._device)

    def seconds(self, start: Moment, end: Moment) -> float:
        """From one moment to another; on a GPU only after `synchronize`."""
        if self.is_cuda:
            return float(start.elapsed_time(end)) / 1e3
        return float(end - start)
