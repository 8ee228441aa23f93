"""The kernel of Cephalo's dynamic programme over devices, units of the batch and sizes."""

from __future__ import annotations

import numpy as np

from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import checked


@checked
def least_longest(
    starts: Integers, units: Integers, sizes: Integers, cost: Floats, total: int, most: int
) -> Integers:
    """(G,) the way of each of G devices whose longest costs least; all -1 where there is none.

    Args:
        starts: (G + 1,) of each device its first way; the ways of a device by rising units.
        units: (N,) of the batch that a way takes.
        sizes: (N,) what a way adds to what is limited.
        cost: (N,) of a way.
        total: Units of the batch, exactly so many are taken.
        most: What `sizes` may sum up to.
    """
    count = len(starts) - 1
    can_take = np.zeros(count + 1, np.int64)  # by a device and those after it
    for device in range(count - 1, -1, -1):
        can_take[device] = can_take[device + 1] + units[starts[device + 1] - 1]
    best = np.full((total + 1, most + 1), np.inf)
    best[0, 0] = 0.0
    taken = np.full((count, total + 1, most + 1), -1, np.int32)
    for device in range(count):
        reached = np.full((total + 1, most + 1), np.inf)
        for done in range(max(total - can_take[device], 0), total + 1):
            for held in range(most + 1):
                value = best[done, held]
                if value == np.inf:
                    continue
                for way in range(starts[device], starts[device + 1]):
                    then = done + units[way]
                    if then > total:
                        break
                    if held + sizes[way] > most:
                        continue
                    longest = max(value, cost[way])
                    if longest < reached[then, held + sizes[way]]:
                        reached[then, held + sizes[way]] = longest
                        taken[device, then, held + sizes[way]] = way
        best = reached
    found = np.full(count, -1, np.int64)
    held = int(np.argmin(best[total]))
    if best[total, held] == np.inf:
        return found
    done = total
    for device in range(count - 1, -1, -1):
        way = taken[device, done, held]
        found[device] = way
        done -= units[way]
        held -= sizes[way]
    return found
