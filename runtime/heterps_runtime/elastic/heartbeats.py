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


def with_stall_s(limits: ElasticSettings, step_time_s: float) -> ElasticSettings:
    """With `stall_s` for a run whose steps are predicted to take so long."""
    stall_s = limits.stall_s or max(STALL_S, STALL_STEPS * step_time_s)
    return limits.changed(stall_s=stall_s)


def stall_to_begin_s(limits: ElasticSettings) -> float:
    """`stall_s` until the first step of a generation: much may be read before it."""
    assert limits.stall_s is not None
    return 4 * limits.stall_s


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
            elif now_s - member.beat_at_s > self._allowed_s(member):
                late.append((member, self._allowed_s(member)))
        return late

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
