"""The times of one recovery, noted as it goes on."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from heterps_runtime.elastic.heartbeats import DELAY_FACTOR, DELAY_S
from heterps_runtime.results.changes import Recovery


@dataclass
class OpenRecovery:
    """A recovery that is under way; all times are of `time.monotonic`.

    Attributes:
        noticed_s: When the supervisor noticed a loss, else when a device had come.
        last_step_s: When the last step before it was done.
        steps_done: How many steps were done by then.
        fault_s: When the fault was injected; None where nobody knows.
        tell_after_s: So long it may take without a word.
    """

    noticed_s: float
    last_step_s: float
    steps_done: int
    fault_s: float | None = None
    lost: set[str] = field(default_factory=set)
    joined: set[str] = field(default_factory=set)
    decision: str = ""
    handed_out_s: float = 0.0
    state: Mapping[str, Any] = field(default_factory=dict)
    tell_after_s: float = DELAY_S

    def is_late(self, now_s: float) -> bool:
        """Whether it is time to say what it waits for, once more."""
        if now_s - self.noticed_s < self.tell_after_s:
            return False
        self.tell_after_s *= DELAY_FACTOR
        return True

    def lose(self, device: str, fault_s: float | None, noticed_s: float) -> None:
        """One more device has gone; the first known fault counts.

        While a device is taken in steps go on: what a loss costs begins with the loss. A fault
        behind that is of another device, whose loss came before it was known.
        """
        if not self.lost:
            self.noticed_s = max(self.noticed_s, noticed_s)
        if device in self.joined:
            self.joined.discard(device)
        else:
            self.lost.add(device)
        known = [time_s for time_s in (self.fault_s, fault_s) if time_s is not None]
        self.fault_s = min((each for each in known if each <= self.noticed_s), default=None)

    def join(self, device: str) -> None:
        """One more device has come."""
        self.joined.add(device)

    def ended(self, generation: int, first_step_s: float) -> Recovery:
        """The record, once the first step under the new plan is done."""
        state, began_s = self.state, self.fault_s or self.noticed_s
        from_step = int(state["from_step"])
        connected_s = state["at_s"] - state["state_s"]
        return Recovery(
            generation=generation,
            lost=tuple(sorted(self.lost)),
            joined=tuple(sorted(self.joined)),
            decision=self.decision,
            detected_s=None if self.fault_s is None else self.noticed_s - self.fault_s,
            replanned_s=self.handed_out_s - self.noticed_s,
            connected_s=connected_s - self.handed_out_s,
            state_s=state["state_s"],
            first_step_s=first_step_s - began_s,
            pause_s=first_step_s - self.last_step_s,
            from_step=from_step,
            steps_repeated=max(0, self.steps_done - from_step),
            bytes_by_source=state["bytes_by_source"],
        )
