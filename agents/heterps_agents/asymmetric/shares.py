"""Micro-batches shared over unlike pipelines, so that the last of them ends as early as can be."""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from heterps_envs.arrays import Floats

LEAST_PART = 1e-9  # Of the longest pipeline's time: a micro-batch that takes less counts as that.


def least_longest(steps_s: Sequence[Floats], total: int) -> tuple[int, ...] | None:
    """Micro-batches of each pipeline, one at least, that minimise the longest time, exactly.

    Each micro-batch goes to the pipeline that is done first with one more: as long as more never
    take less time, no other share has a shorter longest time.

    Args:
        steps_s: (total + 1,) of each pipeline, its seconds with 0, 1, .. micro-batches; inf where
            it has no room for so many.
        total: Micro-batches of all of them.

    Returns:
        None where they are too few, or have no room.
    """
    shares = [1] * len(steps_s)
    if len(shares) > total or any(math.isinf(each[1]) for each in steps_s):
        return None
    ahead = [(float(each[2]), index) for index, each in enumerate(steps_s) if total > 1]
    heapq.heapify(ahead)
    for _ in range(total - len(shares)):
        seconds, index = ahead[0]
        if math.isinf(seconds):
            return None
        shares[index] += 1
        following = float(steps_s[index][shares[index] + 1]) if shares[index] < total else math.inf
        heapq.heapreplace(ahead, (following, index))
    return tuple(shares)


def by_rates(
    first_s: Sequence[float], each_s: Sequence[float], total: int
) -> tuple[int, ...] | None:
    """The same where m micro-batches of pipeline i take `first_s[i] + m each_s[i]` seconds.

    If they could be divided, all would end together; of whole ones each has as many as it is done
    with by then, and who is done first with one more gets what is left over.

    Args:
        first_s: Of each pipeline.
        each_s: Of each pipeline.
        total: Micro-batches of all of them.

    Returns:
        None where they are too few for one each.
    """
    size = len(first_s)
    if size > total:
        return None
    longest_s = max(first + each for first, each in zip(first_s, each_s, strict=True))
    each_s = [max(each, LEAST_PART * longest_s, 1e-30) for each in each_s]
    # Those that are not done with one by then have one all the same, and count no more.
    free, left, level = set(range(size)), total, math.inf
    while free:
        rates = sum(1 / each_s[index] for index in free)
        level = (left + sum(first_s[index] / each_s[index] for index in free)) / rates
        late = {index for index in free if level < first_s[index] + each_s[index]}
        if not late:
            break
        free, left = free - late, left - len(late)
    shares = [
        max(1, math.floor((level - first_s[i]) / each_s[i] + 1e-9)) if i in free else 1
        for i in range(size)
    ]
    ahead = [(first_s[i] + (shares[i] + 1) * each_s[i], i) for i in range(size)]
    heapq.heapify(ahead)
    for _ in range(total - sum(shares)):
        _, index = ahead[0]
        shares[index] += 1
        heapq.heapreplace(ahead, (first_s[index] + (shares[index] + 1) * each_s[index], index))
    return tuple(shares)
