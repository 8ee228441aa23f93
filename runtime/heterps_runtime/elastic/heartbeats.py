"""Signs of life of the processes of an elastic run, as its supervisor sees them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from torch.distributed import Store  # type: ignore[attr-defined]

from heterps_configs.documents.run_settings import ElasticSettings
from heterps_runtime.elastic.store import read_beats
from heterps_runtime.elastic.watch import BEAT_EVERY_S
from heterps_runtime.fleet.processes import Member

# A supervisor that looks less often than this was held up.
HELD_UP_S = 0.1


# Of `ElasticSettings.stall_s`, by default.
STALL_S, STALL_STEPS = 30.0, 10
# Processes that do nothing get so long to leave a generation that has been superseded: at least,
# and in steps. (An emulated device does nothing while it keeps its time.)
LEAVE_S, LEAVE_STEPS = 5.0, 2
# A recovery that takes longer says what it waits for; then after times that grow by the factor.
DELAY_S, DELAY_FACTOR = 2.0, 4.0


def with_stall_s(limits: ElasticSettings, step_time_s: float) -> ElasticSettings:
    """With `stall_s` for a run whose steps are predicted to take so long."""
    stall_s = limits.stall_s or max(STALL_S, STALL_STEPS * step_time_s)
    return limits.changed(stall_s=stall_s)


def stall_to_begin_s(limits: ElasticSettings) -> float:
    """`stall_s` until the first step of a generation: much may be read before it."""
    assert limits.stall_s is not None
    return 4 * limits.stall_s


def leave_s(step_time_s: float) -> float:
    """How long a process that does nothing may take to leave a generation that is superseded."""
    return max(LEAVE_S, LEAVE_STEPS * step_time_s)


def whom_to_wait_for(members: Iterable[Member], generation: int) -> str:
    """What the processes do that a generation waits for, by their heartbeats."""
    doing: dict[str, list[str]] = {}
    for member in members:
        words = _progress(member.beat).split()
        if len(words) < 2:
            text = "starting"
        elif words[0] != str(generation) and words[1] != "waiting":
            text = f"still {words[1]} under plan {int(words[0]) + 1}"
        else:
            text = words[1]
        doing.setdefault(text, []).append(member.device)
    return "; ".join(f"{', '.join(names)}: {text}" for text, names in doing.items())


class Heartbeats:
    """Who is late, and whether anybody does anything.

    Args:
        store: Where processes write their heartbeats.
        limits: How closely they are watched; `stall_s` is set.
        clock: Seconds; another one in tests.
    """

    def __init__(
        self, store: Store, limits: ElasticSettings, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._limits, self._clock = store, limits, clock
        self._looked_s = self._read_s = self._progress_s = clock()

    def note_progress(self) -> None:
        """Something has been done."""
        self._progress_s = self._clock()

    def is_stalled(self, members: Iterable[Member], has_steps: bool) -> bool:
        """Whether nothing has been done for too long.

        Args:
            members: The ranks.
            has_steps: Whether their generation has done a step.
        """
        limit_s = self._limits.stall_s
        assert limit_s is not None
        if not has_steps:
            limit_s = stall_to_begin_s(self._limits)
            if not all(member.is_warm for member in members):
                limit_s = max(limit_s, self._limits.first_read_s)
        return self._clock() - self._progress_s > limit_s

    def overdue(self, members: Iterable[Member]) -> list[tuple[Member, float]]:
        """Processes that are taken for lost, and how long they have been silent at least.

        Args:
            members: All processes.
        """
        members, now_s = list(members), self._clock()
        # Time in which this process was held up itself says nothing of the others.
        held_up_s = max(0.0, now_s - self._looked_s - HELD_UP_S)
        self._looked_s = now_s
        self._progress_s += held_up_s
        for member in members:
            member.beat_at_s += held_up_s
        if now_s - self._read_s < BEAT_EVERY_S / 2:
            return []
        self._read_s = now_s
        beats = read_beats(self._store, [member.device for member in members])
        late = []
        for member in members:
            beat = beats[member.device]
            # What is no heartbeat is no sign of life.
            if beat and beat != member.beat:
                if _progress(beat) != _progress(member.beat):
                    self._progress_s = now_s
                member.beat, member.beat_at_s = beat, now_s
            elif (silent_s := self._overdue_s(member, now_s - member.beat_at_s)) is not None:
                late.append((member, silent_s))
        return late

    def _overdue_s(self, member: Member, silent_s: float) -> float | None:
        """How long a process was silent that may not be so for so long; None where it may."""
        least_s, allowed_s = self._limits.heartbeat_s, self._allowed_s(member)
        if silent_s <= least_s or not member.is_ready:
            return allowed_s if silent_s > allowed_s else None
        if silent_s > allowed_s:
            return allowed_s
        return least_s if member.process.is_stopped() else None

    def _allowed_s(self, member: Member) -> float:
        limits = self._limits
        if not member.is_ready:
            return limits.start_s
        if member.is_warm:
            return limits.heartbeat_s
        return max(limits.standby_s if member.is_standby else limits.warm_up_s, limits.heartbeat_s)


def _progress(beat: str) -> str:
    """What a heartbeat says beside its time."""
    return beat.partition(" ")[2]
