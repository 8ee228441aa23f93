"""Integers that add up to a total and cost least at most: layers of groups, micro-batches."""

from __future__ import annotations

import math
from collections.abc import Sequence

from heterps_configs.errors import InfeasibleError


def split_least(
    slowdowns: Sequence[float],
    total: int,
    most: Sequence[int] | None = None,
    least: Sequence[int] | None = None,
) -> tuple[int, ...]:
    """Integers that add up to a total and minimise `max slowdown_i n_i`, exactly.

    The smallest limit at which all have room enough is a multiple of one of the slow-downs. Below
    it, each takes what is left over, the quickest first.

    Args:
        slowdowns: Seconds of one unit.
        total: Units (layers of a pipeline, micro-batches of all pipelines).
        most: Units that each has room for.
        least: Units that each must take.

    Raises:
        InfeasibleError: There is too little room, or the least together are too many.
    """
    size = len(slowdowns)
    low, high = list(least or [0] * size), list(most or [total] * size)
    if any(a > b for a, b in zip(low, high, strict=True)) or sum(low) > total or sum(high) < total:
        raise InfeasibleError(
            f"{total} cannot be shared: at least {low} and at most {high} are asked for"
        )

    def room(limit: float) -> list[int]:
        return [
            max(a, min(b, math.floor(limit / y + 1e-9)))
            for a, b, y in zip(low, high, slowdowns, strict=True)
        ]

    limits = sorted({y * n for y, b in zip(slowdowns, high, strict=True) for n in range(b + 1)})
    first, last = 0, len(limits) - 1
    while first < last:
        middle = (first + last) // 2
        first, last = (first, middle) if sum(room(limits[middle])) >= total else (middle + 1, last)
    found = room(limits[first])
    # The slowest give back what is too much.
    for index in sorted(range(size), key=lambda i: (-slowdowns[i], i)):
        found[index] -= min(found[index] - low[index], sum(found) - total)
    return tuple(found)
