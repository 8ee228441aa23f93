"""Whether devices of several nodes can do all layers, where each layer stays on one node or not.

In a plan the owners of each layer are all on one node, or on several. Give layers worths, as in
`covering`. Of one plan, let all devices of a class on a node (a unit) do the range that earns most
of those that go with this: together they earn at least 1 if the plan takes so few seconds. The
cores (`spread`) of two units' ranges do not overlap, for whatever lies within a range belongs to
its node or is shared. Where one unit's core is in front of another's, every micro-batch passes it
first, so that the other's way in and back leads over another node (`Needs.in_s`); the same behind.
So the most that cores in a row can earn, at most one for each unit, is a limit for all plans; below
1 none takes so few seconds. A dynamic programme over (layers, units that have a core) finds it.

No node has devices of several classes: their cores would be allowed to overlap.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heterps_envs.compiled import allocating, allocating_helper, uncounted_helper
from heterps_envs.step_bounds.cores import add_cores, add_cover
from heterps_envs.step_bounds.spread import CORE, CORE_STOP, FIRST, OPTION, STOP
from heterps_envs.step_bounds.units import ALL, NUM_WAYS

# The search ends where so many tries in a row have not lowered the least by such a part.
PATIENCE, LEAST_PROGRESS = 30, 1e-3


@allocating
def least_earned_in_zones(
    num_classes: int, units: Any, ranges: Any, worth: Any, iterations: int
) -> float:
    """The least that all units are found to earn together; below 1: not all layers are done.

    Args:
        num_classes: T.
        units: `Units`.
        ranges: `Ranges`.
        worth: (L,) worths to begin with; the best found are written to it.
        iterations: At most.
    """
    num_layers = len(worth)
    now, best, least = worth.copy(), worth.copy(), math.inf
    lowered_at = 0
    value = np.zeros((NUM_WAYS, num_classes, num_layers + 1, num_layers + 1))
    row_of = np.zeros(value.shape, np.int64)
    for step in range(iterations):
        _normalize(now)
        _values(ranges, now, value, row_of)
        cover = np.zeros(num_layers)
        total = 0.0
        for kind in range(len(units.class_of)):
            own = units.class_of[kind]
            devices = units.size[kind] * units.nodes[kind]
            total += devices * value[ALL, own, 0, 0]
            add_cover(ranges, ALL, row_of[ALL, own, 0, 0], devices, cover)
        total += add_cores(units, ranges, value, row_of, cover)
        if total < least * (1 - LEAST_PROGRESS):
            lowered_at = step
        if total < least:
            least = total
            _copy(now, best)
        if least < 1.0 - 1e-9 or step > lowered_at + PATIENCE:
            break
        scale = 1e-300
        for layer in range(num_layers):
            scale = max(scale, cover[layer])
        rate = 1.0 / math.sqrt(1.0 + step)
        for layer in range(num_layers):
            now[layer] *= math.exp(-rate * cover[layer] / scale)
    _copy(best, worth)
    return least


@uncounted_helper
def _copy(source: Any, target: Any) -> None:
    # An assignment of a whole array takes seconds to compile: it has words for unlike shapes.
    for index in range(len(source)):
        target[index] = source[index]


@uncounted_helper
def _normalize(worth: Any) -> None:
    total = 0.0
    for layer in range(len(worth)):
        total += worth[layer]
    for layer in range(len(worth)):
        worth[layer] /= total


@allocating_helper
def _values(ranges: Any, worth: Any, value: Any, row_of: Any) -> None:
    """Writes what a device earns at most with each core; at (0, 0) without one."""
    ahead = np.zeros(len(worth) + 1)
    for layer in range(len(worth)):
        ahead[layer + 1] = ahead[layer] + worth[layer]
    value[:] = 0.0
    row_of[:] = -1
    for row in range(ranges.num[1]):
        at = ranges.rows[row]
        own, core, stop = ranges.class_of[at[OPTION]], at[CORE], at[CORE_STOP]
        if core == stop:
            core, stop = 0, 0
        earned = ahead[at[STOP]] - ahead[at[FIRST]]
        for way in range(NUM_WAYS):
            if earned * ranges.shares[way, row] > value[way, own, core, stop]:
                value[way, own, core, stop] = earned * ranges.shares[way, row]
                row_of[way, own, core, stop] = row
