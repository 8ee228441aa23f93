"""The most that cores in a row can earn: a dynamic programme over (layers, units with a core)."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from heterps_envs.compiled import MINUS_ONE, allocating_helper, uncounted_helper
from heterps_envs.step_bounds.spread import FIRST, STOP
from heterps_envs.step_bounds.units import ALL, BEHIND, FRONT


@allocating_helper
def add_cores(units: Any, ranges: Any, value: Any, row_of: Any, cover: Any) -> float:
    """The most that cores in a row earn beyond ranges without; what they do is added to `cover`."""
    num_layers, num_kinds = len(cover), len(units.class_of)
    # Of cores that others follow: the most in front of a layer, by the set of units that have them;
    # the last core's kind, where it begins and ends, and the set before it.
    most = np.full((num_layers + 1, units.num_sets), -math.inf)
    chosen = np.full((num_layers + 1, units.num_sets, 4), -1, np.int64)
    best, last = 0.0, (ALL, MINUS_ONE, MINUS_ONE, MINUS_ONE, MINUS_ONE)
    for stop in range(1, num_layers + 1):
        for before in range(units.num_sets):
            most[stop, before] = most[stop - 1, before]
            for column in range(4):
                chosen[stop, before, column] = chosen[stop - 1, before, column]
        for kind in range(num_kinds):
            for core in range(stop):
                own, none = units.class_of[kind], value[ALL, units.class_of[kind], 0, 0]
                if units.size[kind] * (value[ALL, own, core, stop] - none) > best:
                    best = units.size[kind] * (value[ALL, own, core, stop] - none)
                    last = (ALL, kind, core, stop, MINUS_ONE)
                first = units.size[kind] * (value[BEHIND, own, core, stop] - none)
                if first > most[stop, units.stride[kind]]:
                    most[stop, units.stride[kind]] = first
                    _write(chosen[stop, units.stride[kind]], kind, core, stop, MINUS_ONE)
                if core == 0 or value[FRONT, own, core, stop] <= none:
                    continue
                gain = units.size[kind] * (value[FRONT, own, core, stop] - none)
                earned, before = _after_others(units, kind, gain, (core, stop), most, chosen)
                if earned > best:
                    best, last = earned, (FRONT, kind, core, stop, before)
    _cover_cores(units, ranges, row_of, (last, chosen), cover)
    return best


@uncounted_helper
def _after_others(
    units: Any, kind: int, gain: float, core: Any, most: Any, chosen: Any
) -> tuple[float, int]:
    """A core behind others: the most earned up to its end, and the set of units before it."""
    begin, end = core
    stride, best, found = units.stride[kind], -math.inf, -1
    for before in range(units.num_sets):
        earned = most[begin, before] + gain
        if earned == -math.inf or before // stride % (units.nodes[kind] + 1) == units.nodes[kind]:
            continue
        if earned > best:
            best, found = earned, before
        if earned > most[end, before + stride]:
            most[end, before + stride] = earned
            _write(chosen[end, before + stride], kind, begin, end, before)
    return best, found


@uncounted_helper
def _write(row: Any, kind: int, core: int, stop: int, before: int) -> None:
    row[0], row[1], row[2], row[3] = kind, core, stop, before


@uncounted_helper
def _cover_cores(units: Any, ranges: Any, row_of: Any, found: Any, cover: Any) -> None:
    """Adds what the units do that have cores, less what they would do without."""
    (way, kind, core, stop, before), chosen = found
    while kind >= 0:
        own, size = units.class_of[kind], units.size[kind]
        add_cover(ranges, way, row_of[way, own, core, stop], size, cover)
        add_cover(ranges, ALL, row_of[ALL, own, 0, 0], -size, cover)
        if before < 0:
            break
        at = chosen[core, before]
        kind, core, stop, before = at[0], at[1], at[2], at[3]
        way = BEHIND if before < 0 else FRONT


@uncounted_helper
def add_cover(ranges: Any, way: int, row: int, devices: float, cover: Any) -> None:
    """Adds what devices do of each layer."""
    if row >= 0:
        at = ranges.rows[row]
        for layer in range(at[FIRST], at[STOP]):
            cover[layer] += devices * ranges.shares[way, row]
