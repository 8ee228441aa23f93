"""What it takes until all virtual workers have the updates of a wave."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise

from heterps_envs.problem import Problem


def sums_seconds(
    problem: Problem, workers: Sequence[tuple[tuple[str, ...], tuple[int, ...]]]
) -> float:
    """Of the device that takes longest: rings with those that hold the same layers, one by one.

    Args:
        problem: The problem.
        workers: The devices of each, from the front, and the first layer of each device.
    """
    count, gradients = len(workers), problem.tables.gradient_bytes
    if count == 1:
        return 0.0
    borders = sorted({first for _, cuts in workers for first in cuts})
    seconds: dict[str, float] = defaultdict(float)
    for first, end in pairwise([*borders, problem.tables.num_layers]):
        holders = [devices[bisect_right(cuts, first) - 1] for devices, cuts in workers]
        latency_s, s_per_byte = problem.slowest_link(pairwise([*holders, holders[0]]))
        num_bytes = float(gradients[first:end].sum())
        own_s = 2 * (count - 1) * (latency_s + num_bytes / count * s_per_byte)
        for name in holders if num_bytes else ():
            seconds[name] += own_s
    return max(seconds.values(), default=0.0)
