"""Signs of life of the processes of an elastic run, as its supervisor sees them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from torch.distributed import Store  # type: ignore[attr-defined]

from heterps_runtime.elastic.processes import Member
from heterps_runtime.elastic.store import read_beats
from heterps_runtime.elastic.watch import BEAT_EVERY_S

# A process imports for seconds before its first heartbeat, on a busy host for many; the heartbeats
# of one that builds a model for the first time may come late.
START_S, WARM_UP_S = 300.0, 120.0
# The others wait for one that has come: the model is recorded, the first stage still to be built.
STANDBY_S = 20.0
# A model that is read for the first time may be large, and its storage slow.
FIRST_READ_S = 1200.0
# A supervisor that looks less often than this was held up.
HELD_UP_S = 0.1


@dataclass(frozen=True)
class Watching:
    """How closely processes are watched.

    Attributes:
        heartbeat_s: A process without a sign of life for so long is taken for lost, and killed.
        stall_s: All are alive, but for so long none has done anything: the generation is broken.
    """

    heartbeat_s: float = 1.5
    stall_s: float = 30.0

    @property
    def stall_to_begin_s(self) -> float:
        """The same until the first step of a generation: much may be read before it."""
        return 4 * self.stall_s


class Heartbeats:
    """Who is late, and whether anybody does anything.

    Args:
        store: Where processes write their heartbeats.
        watching: How closely they are watched.
        clock: Seconds; another one in tests.
    """

    def __init__(
        self, store: Store, watching: Watching, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._watching, self._clock = store, watching, clock
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
        limit_s = self._watching.stall_s
        if not has_steps:
            limit_s = self._watching.stall_to_begin_s
            if not all(member.is_warm for member in members):
                limit_s = max(limit_s, FIRST_READ_S)
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
            if beat != member.beat:
                if _progress(beat) != _progress(member.beat):
                    self._progress_s = now_s
                member.beat, member.beat_at_s = beat, now_s
            elif now_s - member.beat_at_s > self._allowed_s(member):
                late.append((member, self._allowed_s(member)))
        return late

    def _allowed_s(self, member: Member) -> float:
        if not member.is_ready:
            return START_S
        limit_s = self._watching.heartbeat_s
        if member.is_warm:
            return limit_s
        return max(STANDBY_S if member.is_standby else WARM_UP_S, limit_s)


def _progress(beat: str) -> str:
    """What a heartbeat says beside its time."""
    return beat.partition(" ")[2]
