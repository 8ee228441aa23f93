"""Whether whole devices can do all layers: each has one range, not parts of several.

A search by depth: the first layer that is not done needs one more device with a range that holds
it. Worths of layers, as in `covering`, end it early: what is left to do is worth more than all
devices that are left can earn. A group's devices each do their part of it, whoever the others are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import njit

from heterps_envs.compiled import ALLOCATING, uncounted

# Ranges of one class; where more are worth a look, nothing is said.
MOST_RANGES = 4000
_DONE = 1e-9


@njit(**ALLOCATING)
def is_out_of_reach(n: Any, shares: Any, worth: Any, most_steps: int) -> bool:
    """Whether a search through all choices of ranges ends without one that does all layers.

    Args:
        n: `Needs`.
        shares: (O, L, L) see `shares.most_shares`.
        worth: (L,) any worths; good ones make the search short.
        most_steps: That it may take; False where these are not enough.
    """
    num_layers, num_classes = len(worth), len(n.num_devices)
    ends = np.zeros((num_classes, MOST_RANGES, 2), np.int64)
    part = np.zeros((num_classes, MOST_RANGES))
    count = np.zeros(num_classes, np.int64)
    earned = np.zeros(num_classes)
    for option in range(len(n.class_of)):
        kind = n.class_of[option]
        if not _widest(shares, option, n.degree[option], ends[kind], part[kind], count, kind):
            return False
    for kind in range(num_classes):
        for row in range(count[kind]):
            value = 0.0
            for layer in range(ends[kind, row, 0], ends[kind, row, 1]):
                value += worth[layer] * part[kind, row]
            earned[kind] = max(earned[kind], value)
    num_devices = int(n.num_devices.sum())
    left = np.ones((num_devices + 1, num_layers))
    free = np.zeros((num_devices + 1, num_classes), np.int64)
    for kind in range(num_classes):
        free[0, kind] = n.num_devices[kind]
    # The class and row that are tried next at each depth, and the layer they have to hold.
    at = np.zeros((num_devices + 1, 3), np.int64)
    at[0, 2] = 0
    depth = 0
    for _ in range(most_steps):
        kind, row, layer = at[depth, 0], at[depth, 1], at[depth, 2]
        if kind >= num_classes:
            depth -= 1
            if depth < 0:
                return True
            continue
        if row >= count[kind] or free[depth, kind] == 0:
            at[depth, 0], at[depth, 1] = kind + 1, 0
            continue
        at[depth, 1] += 1
        if ends[kind, row, 0] > layer or ends[kind, row, 1] <= layer:
            continue
        for each in range(num_layers):
            left[depth + 1, each] = left[depth, each]
        for each in range(ends[kind, row, 0], ends[kind, row, 1]):
            left[depth + 1, each] -= part[kind, row]
        able = 0.0
        for each in range(num_classes):
            free[depth + 1, each] = free[depth, each] - (each == kind)
            able += free[depth + 1, each] * earned[each]
        following = _first_left(left[depth + 1])
        if following == num_layers:
            return False
        if _worth_left(left[depth + 1], worth) > able + _DONE:
            continue
        depth += 1
        # Devices that hold the same first layer come in one order.
        is_same = following == layer
        at[depth, 0], at[depth, 1] = (kind, row) if is_same else (0, 0)
        at[depth, 2] = following
    return False


@uncounted
def _widest(
    shares: Any, option: int, degree: int, ends: Any, part: Any, count: Any, kind: int
) -> bool:
    """Adds ranges that no wider one of the option has the share of; False: there are too many."""
    num_layers = shares.shape[1]
    for first in range(num_layers):
        for last in range(first, num_layers):
            share = shares[option, first, last]
            if share <= 0:
                continue
            if last + 1 < num_layers and shares[option, first, last + 1] >= share:
                continue
            if first > 0 and shares[option, first - 1, last] >= share:
                continue
            if count[kind] == len(ends):
                return False
            ends[count[kind], 0], ends[count[kind], 1] = first, last + 1
            part[count[kind]] = share / degree
            count[kind] += 1
    return True


@uncounted
def _first_left(left: Any) -> int:
    """The first layer that is not done."""
    for layer in range(len(left)):
        if left[layer] > _DONE:
            return layer
    return len(left)


@uncounted
def _worth_left(left: Any, worth: Any) -> float:
    total = 0.0
    for layer in range(len(left)):
        total += max(left[layer], 0.0) * worth[layer]
    return total
