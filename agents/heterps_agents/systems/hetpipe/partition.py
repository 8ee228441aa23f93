"""The partition of a model over a virtual worker, exact: no order of its devices is better.

    min max over stages (compute + messages)   within the memory of the mini-batches in flight

A stage's messages are those that it receives: activations from the stage in front, gradients from
the one behind. Layers are contiguous, every device has some.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.hetpipe.kernels import least_slowest
from heterps_envs.arrays import Floats, Integers
from heterps_envs.problem import Problem

# Transitions of the dynamic programme, a second or so; states, each of 16 bytes.
MAX_WORK, MAX_STATES = 300_000_000, 20_000_000


class WorkerTables(NamedTuple):
    """What the partition reads, of L layers and T kinds of devices: alike in time and in links.

    Attributes:
        compute_s: (T, L) of both passes.
        state_bytes: (L,) of weights, gradients and optimizer state.
        kept_bytes: (L,) of one mini-batch.
        cut_bytes: (L + 1,) in front of each layer, and behind the last one; 0 at both ends.
        counts: (T,) devices.
        memory_bytes: (T,) of each device.
        links: (2, T, T) latency, and seconds for each byte, from one kind to another.
        all_at_once: Stages hold all mini-batches, as under GPipe.
    """

    compute_s: Floats
    state_bytes: Floats
    kept_bytes: Floats
    cut_bytes: Floats
    counts: Integers
    memory_bytes: Floats
    links: Floats
    all_at_once: bool = False

    @property
    def key(self) -> Hashable:
        """Equal for workers that have the same partitions."""
        return tuple(np.asarray(each).tobytes() for each in self)

    @property
    def num_stages(self) -> int:
        """One for each device."""
        return int(self.counts.sum())

    @property
    def is_too_large(self) -> bool:
        """Whether there are too many orders and cuts to look at all."""
        kinds, layers = self.compute_s.shape
        states = math.prod(int(count) + 1 for count in self.counts) * (kinds + 1) ** 2 * layers
        return bool(states > MAX_STATES or states * kinds * layers // 2 > MAX_WORK)


class PlacedLayers(NamedTuple):
    """Layers `first .. end - 1` on a device of a kind."""

    kind: int
    first: int
    end: int


class Partition(NamedTuple):
    """Stages from the front, the seconds of the slowest, and those of one mini-batch alone."""

    stages: tuple[PlacedLayers, ...]
    slowest_s: float
    alone_s: float

    def period_s(self, in_flight: int) -> float:
        """Seconds from one mini-batch to the next, with so many in flight."""
        return max(self.slowest_s, self.alone_s / in_flight)


def partition(tables: WorkerTables, in_flight: int) -> Partition | None:
    """The best partition with so many mini-batches in flight; None where none fits."""
    found = least_slowest(
        _summed(tables.compute_s),
        _summed(tables.state_bytes),
        _summed(tables.kept_bytes),
        tables.cut_bytes,
        tables.counts,
        tables.memory_bytes,
        tables.links,
        in_flight,
        tables.all_at_once,
    )
    if not len(found):
        return None
    ends = [*found[1:, 1].tolist(), tables.compute_s.shape[1]]
    rows = zip(found.tolist(), ends, strict=True)
    stages = tuple(PlacedLayers(kind, first, end) for (kind, first), end in rows)
    seconds = stage_seconds(tables, stages)
    return Partition(stages, max(seconds), sum(seconds))


def fits(tables: WorkerTables, stages: Sequence[PlacedLayers], in_flight: int) -> bool:
    """Whether stages have room for so many mini-batches in flight."""
    for behind, (kind, first, end) in enumerate(reversed(stages)):
        holds = in_flight if tables.all_at_once else min(in_flight, behind + 1)
        held = tables.state_bytes[first:end] + holds * tables.kept_bytes[first:end]
        if held.sum() > tables.memory_bytes[kind]:
            return False
    return True


def stage_seconds(tables: WorkerTables, stages: Sequence[PlacedLayers]) -> list[float]:
    """Of each stage, its layers and what it receives."""
    latency_s, s_per_byte = tables.links
    seconds = [float(tables.compute_s[kind, first:end].sum()) for kind, first, end in stages]
    for index, (front, behind) in enumerate(pairwise(stages)):
        num_bytes = tables.cut_bytes[behind.first]
        there, back = (front.kind, behind.kind), (behind.kind, front.kind)
        seconds[index + 1] += float(latency_s[there] + num_bytes * s_per_byte[there])
        seconds[index] += float(latency_s[back] + num_bytes * s_per_byte[back])
    return seconds


def worker_tables(
    problem: Problem, names: Sequence[str]
) -> tuple[WorkerTables, tuple[tuple[str, ...], ...]]:
    """The tables of some devices, and those of each kind: of a class, and on a node."""
    kinds: dict[tuple[int, str], list[str]] = {}
    for name in names:
        key = problem.class_of[name], problem.device_named[name].node
        kinds.setdefault(key, []).append(name)
    tables, classes = problem.tables, [kind for kind, _ in kinds]
    members = tuple(tuple(each) for each in kinds.values())
    links = np.zeros((2, len(kinds), len(kinds)))
    for a, front in enumerate(members):
        for b, behind in enumerate(members):
            pair = front[0], behind[-1]
            links[:, a, b] = problem.slowest_link([pair]) if pair[0] != pair[1] else 0.0
    found = WorkerTables(
        compute_s=np.ascontiguousarray(tables.compute_s[:, classes].T),
        state_bytes=tables.state_bytes,
        kept_bytes=tables.activation_bytes,
        cut_bytes=np.concatenate([[0.0], tables.output_bytes]),
        counts=np.array([len(each) for each in members], np.int64),
        memory_bytes=tables.memory_bytes[classes],
        links=links,
        all_at_once=tables.is_gpipe,
    )
    return found, members


def _summed(values: Floats) -> Floats:
    """Sums of what is in front of each border."""
    width = ((0, 0),) * (values.ndim - 1) + ((1, 0),)
    return np.pad(np.cumsum(values, axis=-1), width)
