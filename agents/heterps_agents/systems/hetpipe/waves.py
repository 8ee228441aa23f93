"""Wave synchronous parallelism (WSP): when a virtual worker may begin a mini-batch.

A wave is a worker's mini-batches between two clocks of its own; the global clock is that of the
slowest worker. The weights of a mini-batch have all updates up to the global clock, of any worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import checked, checked_helper

# The first waves are not counted, while the pipelines fill.
_WARM_UP, _COUNTED = 2, 4


class Pace(NamedTuple):
    """A virtual worker.

    Attributes:
        period_s: From the start of one mini-batch to the start of the next.
        alone_s: Of one mini-batch through the pipeline.
        in_flight: Mini-batches in the pipeline, at most.
        wave: Mini-batches of a wave.
    """

    period_s: float
    alone_s: float
    in_flight: int
    wave: int


@checked_helper
def least_clock(mini_batch: int, wave: int, distance: int) -> int:
    """The global clock that a mini-batch waits for.

    Args:
        mini_batch: Of a worker, counted from 1.
        wave: Mini-batches of a wave.
        distance: Clocks that a worker may be ahead of the slowest one (D).
    """
    return mini_batch // wave - 1 - distance


def most_missing(wave: int, distance: int) -> int:
    """Updates of earlier mini-batches of another worker that a mini-batch lacks at most."""
    return (distance + 1) * wave + wave - 2


def waves_of(
    paces: Sequence[Pace], distance: int, num_waves: int, sums_s: float = 0.0
) -> tuple[list[Floats], Floats]:
    """When workers begin their mini-batches, and when the global clock is 0, 1, ... (seconds).

    Args:
        paces: Of the workers.
        distance: See `least_clock`.
        num_waves: Of each worker.
        sums_s: From the end of the slowest worker's wave until all have its updates.
    """
    numbers = np.array([(pace.in_flight, pace.wave) for pace in paces], np.int64)
    seconds = np.array([(pace.period_s, pace.alone_s) for pace in paces])
    starts, clocks = _run(numbers, seconds, distance, num_waves, sums_s)
    counts = numbers[:, 1] * num_waves
    return [own[:count] for own, count in zip(starts, counts, strict=True)], clocks


def wave_seconds(paces: Sequence[Pace], sums_s: float, distance: int = 0) -> float:
    """Seconds from one global clock to the next, once the pipelines are full."""
    _, clocks = waves_of(paces, distance, _WARM_UP + _COUNTED, sums_s)
    return float(clocks[-1] - clocks[_WARM_UP]) / _COUNTED


@checked
def _run(
    numbers: Integers, seconds: Floats, distance: int, num_waves: int, sums_s: float
) -> tuple[Floats, Floats]:
    count, most = len(numbers), int(numbers[:, 1].max()) * num_waves
    starts = np.full((count, most), np.inf)
    clocks = np.zeros(num_waves + 1)
    for wave in range(num_waves):
        for worker in range(count):
            in_flight, size = numbers[worker]
            period_s, alone_s = seconds[worker]
            for index in range(wave * size, (wave + 1) * size):
                start = 0.0
                if index >= 1:
                    start = starts[worker, index - 1] + period_s
                if index >= in_flight:
                    start = max(start, starts[worker, index - in_flight] + alone_s)
                # A mini-batch waits for no clock of its own wave, whatever the distance.
                start = max(start, clocks[max(least_clock(index + 1, size, distance), 0)])
                starts[worker, index] = start
            last_s = starts[worker, (wave + 1) * size - 1] + alone_s
            clocks[wave + 1] = max(clocks[wave + 1], last_s + sums_s)
    return starts, clocks
