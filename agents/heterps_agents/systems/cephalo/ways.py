"""Ways of a device to take samples, and the ways of all devices whose longest is the shortest."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.cephalo.cost import Collectives, DeviceTimes, device_seconds
from heterps_agents.systems.cephalo.kernels import least_longest
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats, Integers

# Transitions of the dynamic programme, a second or two; what it keeps for each device and state.
MAX_WORK, MAX_STATES = 1_000_000_000, 100_000_000
# Of answers that collectives make equally long, the one whose devices compute least.
_TIE = 1e-6
# What is looked at costs so much more each time that nothing was found.
_WIDER = 1.1


class Batch(NamedTuple):
    """Micro-batches of a device, and the samples of each; 0 of 0: none."""

    micro_batches: int
    size: int

    @property
    def samples(self) -> int:
        """All of them."""
        return self.micro_batches * self.size


class Ways(NamedTuple):
    """(N,) ways of a device to take samples, by rising numbers of them, with seconds of a step.

    Attributes:
        cost: The seconds, and of equal ones less where the device computes less.
    """

    counts: Integers
    sizes: Integers
    seconds: Floats
    cost: Floats

    @property
    def samples(self) -> Integers:
        """(N,) of each way."""
        return self.counts * self.sizes

    def within(self, limit: float) -> Ways:
        """Those that cost no more."""
        kept = self.cost <= limit
        return Ways(self.counts[kept], self.sizes[kept], self.seconds[kept], self.cost[kept])


def ways_of(
    times: DeviceTimes,
    collectives: Collectives,
    num_samples: int,
    sizes: Sequence[int],
    most_count: int,
    further_s: float,
) -> Ways:
    """All ways with micro-batches of some sizes, none of them first.

    Args:
        times: Of the device.
        collectives: That it takes part in.
        num_samples: It takes no more.
        sizes: Of a micro-batch, all that are looked at.
        most_count: Micro-batches that it may take.
        further_s: See `device_seconds`.
    """
    counts, each_of = [np.zeros(1, np.int64)], [np.zeros(1, np.int64)]
    for size in sizes:
        counts.append(np.arange(1, min(num_samples // size, most_count) + 1))
        each_of.append(np.full(len(counts[-1]), size))
    count, size_of = np.concatenate(counts), np.concatenate(each_of)
    order = np.lexsort((size_of, count * size_of))
    count, size_of = count[order], size_of[order]
    seconds = device_seconds(times, collectives, count, size_of, further_s)
    alone = device_seconds(times, collectives.none(), count, size_of, further_s)
    return Ways(count, size_of, seconds, seconds + _TIE * alone)


def shortest(
    ways: Sequence[Ways], num_samples: int, most_together: float
) -> tuple[tuple[Batch, ...], float] | None:
    """One way for each device, and the seconds of the longest; None where there are none.

    Only ways that cost no more than a limit are looked at: what is found among them is the best of
    all. The limit rises until something is found.

    Args:
        ways: Of each device.
        num_samples: That they take together, exactly.
        most_together: What the sizes of a micro-batch of each sum up to at most.

    Raises:
        HeterpsError: There are too many combinations.
    """
    limits = np.unique(np.concatenate([each.cost for each in ways]))
    position = _first_limit(ways, limits, num_samples)
    while position < len(limits):
        kept = [each.within(float(limits[position])) for each in ways]
        found = (
            _solved(kept, num_samples, most_together) if all(len(e.cost) for e in kept) else None
        )
        if found is not None:
            return found
        wider = int(np.searchsorted(limits, _WIDER * limits[position]))
        # The last limit has all ways; after it there are no more.
        last = len(limits) - 1
        position = last + 1 if position == last else min(max(wider, position + 1), last)
    return None


def _first_limit(ways: Sequence[Ways], limits: Floats, num_samples: int) -> int:
    """Below it devices do not take so many samples, in whatever micro-batches."""

    def taken(limit: float) -> int:
        return sum(int(each.samples[each.cost <= limit].max(initial=0)) for each in ways)

    low, high = 0, len(limits)
    while low < high:
        middle = (low + high) // 2
        is_enough = taken(float(limits[middle])) >= num_samples
        low, high = (low, middle) if is_enough else (middle + 1, high)
    return low


def _solved(
    ways: Sequence[Ways], num_samples: int, most_together: float
) -> tuple[tuple[Batch, ...], float] | None:
    samples, sizes = (np.concatenate([getattr(each, name) for each in ways]) for name in _COLUMNS)
    unit = math.gcd(num_samples, *sizes.tolist())
    is_limited = sum(int(each.sizes.max()) for each in ways) > most_together
    most, total = int(most_together // unit) if is_limited else 0, num_samples // unit
    states = (total + 1) * (most + 1)
    if states * len(samples) > MAX_WORK or states * len(ways) > MAX_STATES:
        raise HeterpsError(
            f"sharing {total} parts of the batch over {len(ways)} devices takes "
            f"{states * len(samples)} steps; at most {MAX_WORK}: take larger micro-batches"
        )
    starts = np.cumsum([0, *(len(each.cost) for each in ways)])
    held = sizes // unit if is_limited else np.zeros_like(sizes)
    cost = np.concatenate([each.cost for each in ways])
    chosen = least_longest(starts, samples // unit, held, cost, total, most)
    if chosen[0] < 0:
        return None
    rows = [
        (each, int(row) - start) for each, row, start in zip(ways, chosen, starts[:-1], strict=True)
    ]
    batches = tuple(Batch(int(each.counts[row]), int(each.sizes[row])) for each, row in rows)
    return batches, max(float(each.seconds[row]) for each, row in rows)


_COLUMNS = ("samples", "sizes")
