"""AMP's cost of a layer split, and the split that costs least, for given degrees and devices.

    T = (B - 1) max_stage compute + sum of stages + sum of messages + max_stage all-reduce

AMP's own dynamic programme minimises all but the last term and adds that one afterwards; it is not
exact either. Here the whole of T is minimised, exactly. One sweep finds the least sum of messages
of all splits whose stages stay below a limit of compute and one of all-reduce. What it finds
divides what is left in two: splits whose slowest stage is quicker, and splits whose longest
all-reduce is shorter. Boxes of such limits are looked at by their bounds, the lowest first, until
none is below the best split.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.amp.kernels import least_messages_s
from heterps_envs.arrays import Floats, Integers

# Seconds that differ by less, relatively, are the same: sums of the same in another order.
SAME = 1e-12
# How near the search begins to the quickest slowest stage; nearer takes longer and prunes more.
NEAR = 1.001


@dataclass(frozen=True)
class Layers:
    """What AMP knows of the layers at one tensor-parallel degree, whatever devices they are on.

    Attributes:
        compute_s: (L,) of a micro-batch, forward and backward.
        gradient_bytes: (L,) on one device.
        message_bytes: (L,) over the cut behind the layer, there and back.
    """

    compute_s: Floats
    gradient_bytes: Floats
    message_bytes: Floats

    @cached_property
    def sums(self) -> tuple[Floats, Floats]:
        """(L + 1,) each: seconds and bytes of the layers in front of every cut."""
        parts = self.compute_s, self.gradient_bytes
        seconds, size = (np.concatenate([[0.0], np.cumsum(each)]) for each in parts)
        return seconds, size


class Stages(NamedTuple):
    """Where stages stand, as far as their layers cost more or less there.

    Attributes:
        micro_batches: B, of one pipeline.
        ring_s_per_byte: Of each stage's all-reduce; 0 without replicas.
        link_s_per_byte: Of the link behind each stage but the last.
    """

    micro_batches: int
    ring_s_per_byte: tuple[float, ...]
    link_s_per_byte: tuple[float, ...]

    @property
    def number(self) -> int:
        """How many stages there are."""
        return len(self.ring_s_per_byte)


class Split(NamedTuple):
    """Layers behind each stage, and what AMP says a step takes."""

    stops: tuple[int, ...]
    seconds: float


def cost_s(layers: Layers, stages: Stages, stops: Sequence[int]) -> float:
    """AMP's seconds of a step with stages that end in front of these layers."""
    seconds, size = layers.sums
    edges = list(pairwise((0, *stops)))
    own = [seconds[stop] - seconds[start] for start, stop in edges]
    sums = [
        ring * (size[stop] - size[start])
        for ring, (start, stop) in zip(stages.ring_s_per_byte, edges, strict=True)
    ]
    messages = sum(
        link * layers.message_bytes[stop - 1]
        for link, stop in zip(stages.link_s_per_byte, stops, strict=False)
    )
    passes_s = (stages.micro_batches - 1) * max(own) + seconds[-1]
    return float(passes_s + messages + max(sums))


class _Found(NamedTuple):
    """A split with the least messages in a box, its messages, slowest stage, longest all-reduce."""

    stops: tuple[int, ...]
    messages_s: float
    stage_s: float
    reduce_s: float


class _Box(NamedTuple):
    """Splits between limits of the slowest stage and of the longest all-reduce.

    Attributes:
        bound_s: No split in it costs less.
        order: Which of equal ones is looked at first.
        least: Of both limits.
        most: The same.
        found: A split of the least messages.
    """

    bound_s: float
    order: int
    least: tuple[float, float]
    most: tuple[float, float]
    found: _Found


class _Search:
    """Sweeps of one case."""

    def __init__(self, layers: Layers, stages: Stages) -> None:
        self.layers, self.stages = layers, stages
        shape = stages.number, len(layers.compute_s) + 1
        self._rooms: tuple[Floats, Integers] = np.empty(shape), np.empty(shape, np.int64)
        self._rings = np.array(stages.ring_s_per_byte)
        self._links = np.array([0.0, *stages.link_s_per_byte])
        self._order = itertools.count()

    @property
    def more_rounds(self) -> int:
        """How often the slowest stage counts beside the sum of all."""
        return self.stages.micro_batches - 1

    def sweep(self, most: tuple[float, float]) -> _Found | None:
        """The least messages within limits; None where no split keeps them."""
        seconds, size = self.layers.sums
        messages_s = least_messages_s(
            seconds, size, self.layers.message_bytes, self._rings, self._links,
            np.array(most), *self._rooms,
        )  # fmt: skip
        if math.isinf(messages_s):
            return None
        stops, starts = [len(seconds) - 1], self._rooms[1]
        for stage in range(self.stages.number - 1, 0, -1):
            stops.append(int(starts[stage, stops[-1]]))
        stops.reverse()
        edges = np.array([0, *stops])
        own, sums = np.diff(seconds[edges]), self._rings * np.diff(size[edges])
        return _Found(tuple(stops), messages_s, float(own.max()), float(sums.max()))

    def quick(self) -> tuple[_Found, float]:
        """A split whose slowest stage is about as quick as any, and a bound below all of them."""
        found = self.sweep((math.inf, math.inf))
        assert found is not None, "as many layers as stages"
        mean_s = float(self.layers.sums[0][-1]) / self.stages.number
        low = max(float(self.layers.compute_s.max()), mean_s) * (1 - SAME)
        while found.stage_s > low * NEAR > 0:
            middle = (low + found.stage_s) / 2
            quicker = self.sweep((middle, math.inf))
            low, found = (middle, found) if quicker is None else (low, quicker)
        return found, low

    def box(
        self, least: tuple[float, float], most: tuple[float, float], below_s: float
    ) -> _Box | None:
        """A box where it can hold a split below some cost."""
        if least[0] > most[0] or least[1] > most[1] or self.cost_s(*least, 0.0) >= below_s:
            return None
        found = self.sweep(most)
        if found is None:
            return None
        return _Box(self.cost_s(*least, found.messages_s), next(self._order), least, most, found)

    def cost_of(self, found: _Found) -> float:
        """Of a split that was found."""
        return self.cost_s(found.stage_s, found.reduce_s, found.messages_s)

    def cost_s(self, stage_s: float, reduce_s: float, messages_s: float) -> float:
        """Of a slowest stage, a longest all-reduce and all messages."""
        passes_s = self.more_rounds * stage_s + float(self.layers.sums[0][-1])
        return passes_s + messages_s + reduce_s


def best_split(layers: Layers, stages: Stages) -> Split:
    """The contiguous split of least cost, up to `SAME`."""
    assert 0 < stages.number <= len(layers.compute_s)
    search = _Search(layers, stages)
    best, least_s = search.quick()
    best_s, most_s = search.cost_of(best), math.inf
    if search.more_rounds:
        # What a slower stage costs more must be saved elsewhere.
        most_s = (best_s - float(layers.sums[0][-1])) / search.more_rounds
    root = search.box((least_s, 0.0), (most_s, math.inf), best_s)
    waiting = [] if root is None else [root]
    while waiting and waiting[0].bound_s < best_s * (1 - SAME):
        box = heapq.heappop(waiting)
        found, found_s = box.found, search.cost_of(box.found)
        if found_s < best_s:
            best, best_s = found, found_s
        quicker = _below(found.stage_s), box.most[1]
        shorter = box.most[0], _below(found.reduce_s)
        not_quicker = max(box.least[0], found.stage_s), box.least[1]
        for least, most in ((box.least, quicker), (not_quicker, shorter)):
            half = search.box(least, most, best_s)
            if half is not None:
                heapq.heappush(waiting, half)
    return Split(best.stops, cost_s(layers, stages, best.stops))


def _below(seconds: float) -> float:
    """The next limit that leaves them out; below 0 there is none."""
    return seconds * (1 - SAME) if seconds > 0 else -1.0
