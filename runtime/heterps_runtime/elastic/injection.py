"""Faults and joins that are injected into an elastic run, to see how it copes."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence

from heterps_configs.documents.run_events import RunEvent
from heterps_runtime.fleet.processes import Processes


class Injection:
    """The events that are still to come.

    Args:
        processes: Of the run.
        events: In any order.
        start: Starts the process of a device.
    """

    def __init__(
        self, processes: Processes, events: Sequence[RunEvent], start: Callable[[str], None]
    ) -> None:
        self._processes, self._events, self._start = processes, list(events), start
        # Devices that should come and are still there: each comes when it has been lost.
        self._waiting: list[str] = []

    @property
    def has_joins(self) -> bool:
        """Whether a device will come that is not there."""
        coming = [event.subject for event in self._events if event.kind == "join"]
        return bool(coming) or any(name not in self._processes.members for name in self._waiting)

    @property
    def unneeded(self) -> tuple[str, ...]:
        """Devices that should have come and were there all the time."""
        return tuple(self._waiting)

    def carry_out(self, num_steps: int, first_step_s: float) -> None:
        """Does what is due.

        Args:
            num_steps: Steps that are done.
            first_step_s: When the first one was done.
        """
        elapsed_s = time.monotonic() - first_step_s
        for event in list(self._events):
            if event.step is not None:
                is_due = num_steps >= event.step
            else:
                assert event.time_s is not None
                is_due = elapsed_s >= event.time_s
            if is_due:
                self._events.remove(event)
                self._carry_out(event)
        for name in [name for name in self._waiting if name not in self._processes.members]:
            self._waiting.remove(name)
            self._start(name)

    def _carry_out(self, event: RunEvent) -> None:
        member = self._processes.members.get(event.subject)
        if event.kind == "join":
            self._waiting.append(event.subject)
        elif member is not None:
            member.fault_s = time.monotonic()
            is_stop = event.kind == "stop"
            self._processes.signal(event.subject, signal.SIGSTOP if is_stop else signal.SIGKILL)
