"""All that a device may do of a step of T seconds, for `covering` and for `zones`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from heterps_envs.arrays import Floats
from heterps_envs.compiled import ZERO, uncounted
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.needs import Needs
from heterps_envs.step_bounds.shares import most_shares, spread_most
from heterps_envs.step_bounds.spread import FIRST, OPTION, STOP, add_row, spread_ranges
from heterps_envs.step_bounds.units import NUM_WAYS, Ranges, Units

# Ranges of one way; where there are more, zones are not looked at.
MOST_RANGES = 100_000
# Sets of units; where there are more, zones are not looked at.
MOST_SETS = 300


def units_of(problem: Problem) -> Units | None:
    """The units of a problem; None where zones say nothing, or too much."""
    classes_on: dict[str, set[int]] = {}
    for device in problem.cluster.devices:
        classes_on.setdefault(device.node, set()).add(problem.class_of[device.name])
    found: Counter[tuple[int, int]] = Counter()
    for kind, entry in enumerate(problem.classes):
        sizes = Counter(device.node for device in entry.devices)
        found.update((kind, size) for size in sizes.values())
    if len(classes_on) < 2 or any(len(kinds) > 1 for kinds in classes_on.values()):
        return None
    kinds, sizes_of = np.array(list(found), np.int64).T
    counts = np.array(list(found.values()), np.int64)
    stride = np.concatenate([[1], np.cumprod(counts + 1)])
    if stride[-1] > MOST_SETS:
        return None
    return Units(kinds.copy(), sizes_of.copy(), counts, stride[:-1].copy(), int(stride[-1]))


def anywhere(needs: Needs, step_s: float, shares: Floats, most: Floats) -> bool:
    """Writes shares and largest shares wherever owners are; False: nobody does some layer.

    Args:
        needs: Of the problem.
        step_s: T.
        shares: (O, L, L) see `shares.most_shares`.
        most: (L, L) those of as many seconds or more; lowered to those of T.
    """
    by_layer = np.empty(len(most))
    most_shares(needs, step_s, (0, 0), most, False, shares)
    spread_most(shares, by_layer, most)
    return bool(by_layer.min() > 0)


def ranges_of(
    needs: Needs, units: Units, step_s: float, shares: Floats, most: Floats, room: Ranges
) -> bool:
    """Writes the ranges of all ways to `room`; False where it is too small.

    Args:
        needs: Of the problem.
        units: Of the problem.
        step_s: T.
        shares: From `anywhere`.
        most: From `anywhere`.
        room: Arrays to write to.
    """
    inside = np.empty_like(shares)
    most_shares(needs, step_s, (0, 0), most, True, inside)
    spread = spread_ranges(needs, step_s, most, shares, room.rows, room.shares[0])
    num = _with_cores(inside, room.rows, room.shares[0], spread)
    room.num[0], room.num[1] = spread, num
    if num > MOST_RANGES:
        return False
    for way in range(1, NUM_WAYS):
        ways, anyhow = (way % 2, way // 2), np.empty_like(shares)
        most_shares(needs, step_s, ways, most, False, anyhow)
        most_shares(needs, step_s, ways, most, True, inside)
        _limit(anyhow, inside, room.rows, room.num, room.shares[0], room.shares[way])
    of_option = needs.degree[room.rows[:num, 0]]
    room.shares[:, :num] /= of_option
    return True


def room_for_ranges(needs: Needs) -> Ranges:
    """Arrays for so many ranges as are looked at."""
    rows, shares = np.empty((MOST_RANGES, 5), np.int64), np.empty((NUM_WAYS, MOST_RANGES))
    return Ranges(np.zeros(2, np.int64), rows, shares, needs.class_of)


@uncounted
def _with_cores(inside: Any, rows: Any, row_shares: Any, count: int) -> int:
    """Adds ranges that are cores; returns the new count."""
    num_options, num_layers = inside.shape[:2]
    for option in range(num_options):
        for first in range(num_layers):
            for last in range(first, num_layers):
                if inside[option, first, last] > 0:
                    span = (option, first, last + 1, ZERO, ZERO)
                    share = inside[option, first, last]
                    count = add_row(span, (first, last + 1), share, count, rows, row_shares)
    return count


@uncounted
def _limit(anyhow: Any, inside: Any, rows: Any, num: Any, of_any: Any, of_way: Any) -> None:
    """Writes shares of one way: no more than of any, and than the way leaves time for."""
    for row in range(num[1]):
        option, first, last = rows[row, OPTION], rows[row, FIRST], rows[row, STOP] - 1
        most = inside[option, first, last] if row >= num[0] else anyhow[option, first, last]
        of_way[row] = max(0.0, min(of_any[row], most))
