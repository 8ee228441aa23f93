"""Virtual workers of an allocation with their partitions, and what a step of them takes."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterable, Sequence
from typing import NamedTuple

from heterps_agents.systems.hetpipe.allocation import Allocation
from heterps_agents.systems.hetpipe.partition import Partition, fits, partition
from heterps_agents.systems.hetpipe.sums import sums_seconds
from heterps_agents.systems.hetpipe.tables import WorkerTables, worker_tables
from heterps_agents.systems.hetpipe.waves import Pace, wave_seconds
from heterps_envs.problem import Problem

# In flight are more mini-batches only where a step is so much shorter, as a share.
_GAIN = 1e-6


class Worker(NamedTuple):
    """A virtual worker.

    Attributes:
        devices: From the front.
        cuts: The first layer of each.
        micro_batches: Of a step; may be 0.
    """

    devices: tuple[str, ...]
    cuts: tuple[int, ...]
    micro_batches: int


class Candidate(NamedTuple):
    """The workers of an allocation, mini-batches in flight in each, seconds of a step."""

    policy: str
    workers: tuple[Worker, ...]
    in_flight: int
    seconds: float


class Partitions:
    """Partitions of a problem's virtual workers; those of equal workers are found once."""

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._known: dict[tuple[Hashable, int], Partition | None] = {}
        self._sums_s: dict[Hashable, float] = {}

    def best(self, allocation: Allocation) -> Candidate | None:
        """With as many mini-batches in flight as shorten a step; None where a worker does not fit.

        More of them take more memory, so that the slowest stage may become slower.
        """
        found = [worker_tables(self._problem, names) for names in allocation.workers]
        tables = [own for own, _ in found]
        best: Candidate | None = None
        for in_flight in self._numbers(tables):
            parts = [self._partition(own, in_flight) for own in tables]
            fitting = [part for part in parts if part is not None]
            if len(fitting) < len(parts):
                break
            shares = self._shares(fitting, in_flight)
            rows = zip(fitting, (members for _, members in found), shares, strict=True)
            workers = tuple(_worker(part, members, share) for part, members, share in rows)
            seconds = self._step_s(fitting, workers, in_flight)
            if best is not None and seconds > best.seconds * (1 - _GAIN):
                break
            best = Candidate(allocation.policy, workers, in_flight, seconds)
        return best

    def _numbers(self, tables: Sequence[WorkerTables]) -> Iterable[int]:
        """Of mini-batches in flight, those that a plan can say; more than stages gain nothing."""
        most = max(own.num_stages for own in tables)
        if self._problem.job.schedule == "gpipe":
            return (self._problem.job.num_micro_batches,)
        return range(1, most + 1) if self._problem.job.schedule == "1f1b" else (most,)

    def _partition(self, tables: WorkerTables, in_flight: int) -> Partition | None:
        key = tables.key
        if (key, in_flight) not in self._known:
            found = self._known.get((key, in_flight - 1))
            # What is best with fewer in flight is so with more, as long as it has room.
            if found is None or not fits(tables, found.stages, in_flight):
                found = partition(tables, in_flight)
            self._known[key, in_flight] = found
        return self._known[key, in_flight]

    def _shares(self, parts: Sequence[Partition], in_flight: int) -> list[int]:
        periods = [part.period_s(in_flight) for part in parts]
        return dealt(self._problem.job.num_micro_batches, periods)

    def _step_s(
        self, parts: Sequence[Partition], workers: Sequence[Worker], in_flight: int
    ) -> float:
        """Seconds of a step by WSP; workers that are alike have one pace."""
        paces = {
            Pace(part.period_s(in_flight), part.alone_s, in_flight, worker.micro_batches): None
            for part, worker in zip(parts, workers, strict=True)
            if worker.micro_batches
        }
        used = tuple((each.devices, each.cuts) for each in workers if each.micro_batches)
        if used not in self._sums_s:
            self._sums_s[used] = sums_seconds(self._problem, used)
        return wave_seconds(list(paces), self._sums_s[used])


def dealt(total: int, periods_s: Sequence[float]) -> list[int]:
    """Whole shares of a total, the longest of which takes least.

    Args:
        total: Micro-batches.
        periods_s: Seconds that each takes for one.
    """
    shares = [0] * len(periods_s)
    ends = [(period_s, index) for index, period_s in enumerate(periods_s)]
    heapq.heapify(ends)
    for _ in range(total):
        _, index = ends[0]
        shares[index] += 1
        heapq.heapreplace(ends, ((shares[index] + 1) * periods_s[index], index))
    return shares


def _worker(part: Partition, members: Sequence[Sequence[str]], share: int) -> Worker:
    left = [iter(names) for names in members]
    devices = tuple(next(left[stage.kind]) for stage in part.stages)
    return Worker(devices, tuple(stage.first for stage in part.stages), share)
