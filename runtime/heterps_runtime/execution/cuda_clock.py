"""The clock of a CUDA device: events on its stream, read when the step is over.

The host runs ahead of the device: reading a time after each action would make it wait.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch

from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.execution.emulation import HostClock, Span


class CudaClock(HostClock):
    """Times of actions as the device takes them.

    Args:
        device: The device.
    """

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device
        # Events of the steps before, to be recorded again: making one takes longer than recording.
        self._pool: list[Any] = []
        self._num_used = 0
        # By the host's end of the action, as its record says it.
        self._events: dict[float, tuple[Any, Any]] = {}

    def start_step(self, start_s: float) -> None:
        """Sets the origin of the step's times; the device is idle between steps."""
        self._events.clear()
        self._num_used, self._stream = 0, torch.cuda.current_stream(self._device)
        self._start_s = start_s
        self._origin, self._origin_s = self._event(), time.perf_counter() - start_s

    def begin(self) -> None:
        """The action begins when the device comes to it."""
        super().begin()
        self._began = self._event()

    def finish(self, target_s: float) -> Span:
        """Marks the end; `settled` knows when it was."""
        event, span = self._event(), super().finish(target_s)
        self._events[span.end_s - self._start_s] = self._began, event
        return span

    def settled(self, records: Sequence[ActionRecord]) -> list[ActionRecord]:
        """Waits for the device; the records of a step with its times.

        Messages keep the host's times: when they were asked for.
        """
        self._synchronize()
        return [self._timed(record) for record in records]

    def _timed(self, record: ActionRecord) -> ActionRecord:
        if record.end_s not in self._events:
            return record
        start_s, end_s = (
            self._origin_s + self._origin.elapsed_time(event) / 1000
            for event in self._events[record.end_s]
        )
        return record._replace(start_s=start_s, end_s=end_s)

    def _event(self) -> Any:
        """A moment of the device; its type has no usable annotations."""
        if self._num_used == len(self._pool):
            self._pool.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        event = self._pool[self._num_used]
        self._num_used += 1
        event.record(self._stream)
        return event

    def _synchronize(self) -> None:
        torch.cuda.synchronize(self._device)
