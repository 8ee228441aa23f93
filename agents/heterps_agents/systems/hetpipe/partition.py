"""The partition of a model over a virtual worker, in the best order of its devices.

    min max over stages (compute + messages)   within the memory of the mini-batches in flight

A stage's messages are those that it receives: activations from the stage in front, gradients from
the one behind. Layers are contiguous, every device has some. Exact, but for workers of very many
unlike devices.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from heterps_agents.systems.hetpipe.kernels import least_slowest
from heterps_agents.systems.hetpipe.orders import by_swaps
from heterps_agents.systems.hetpipe.tables import WorkerTables

# Transitions of the dynamic programme over all orders, a second or so; states, each of 16 bytes.
MAX_WORK, MAX_STATES = 300_000_000, 20_000_000


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
    if tables.num_stages > tables.num_layers:
        return None
    if has_all_orders(tables):
        compute_s, state, kept = tables.summed
        found = least_slowest(
            compute_s,
            state,
            kept,
            tables.cut_bytes,
            tables.counts,
            tables.memory_bytes,
            tables.links,
            in_flight,
            tables.all_at_once,
        )
    else:
        found = by_swaps(tables, in_flight)
    if not len(found):
        return None
    ends = [*found[1:, 1].tolist(), tables.num_layers]
    rows = zip(found.tolist(), ends, strict=True)
    stages = tuple(PlacedLayers(kind, first, end) for (kind, first), end in rows)
    seconds = stage_seconds(tables, stages)
    return Partition(stages, max(seconds), sum(seconds))


def has_all_orders(tables: WorkerTables) -> bool:
    """Whether a partition is the best of all orders: there are not too many of them."""
    kinds, layers = tables.compute_s.shape
    states = math.prod(int(count) + 1 for count in tables.counts) * (kinds + 1) ** 2 * layers
    return bool(states <= MAX_STATES and states * kinds * layers // 2 <= MAX_WORK)


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
