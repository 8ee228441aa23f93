"""What the actions of a step took, noted while they run and put together when it is over."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from heterps_envs.schedule.actions import Action


class ActionRecord(NamedTuple):
    """What one action took; times in seconds from the start of the step."""

    kind: str
    stage: str
    micro_batch: int
    start_s: float
    end_s: float


class ActionLabels:
    """What each record of a step says beside its times.

    Args:
        actions: Of the device, in the order in which they are carried out.
    """

    def __init__(self, actions: Sequence[Action]) -> None:
        self._columns = (
            [action.kind for action in actions],
            [action.stage for action in actions],
            [action.micro_batch for action in actions],
        )

    def records(self, times: Sequence[tuple[float, float]], start_s: float) -> list[ActionRecord]:
        """The records of the actions that are done.

        Args:
            times: When each began and ended (`time.perf_counter`).
            start_s: When the step began.
        """
        starts = [began_s - start_s for began_s, _ in times]
        ends = [end_s - start_s for _, end_s in times]
        return list(map(ActionRecord, *self._columns, starts, ends))
