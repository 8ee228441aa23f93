"""The most valuable set of groups whose load stays within a limit (numba).

A set is a path through `heterps_agents.splits.border_states`. The path of largest value under a
limit on the load is found by labels (state, load, worth), pruned by a Lagrangian bound of what can
still come. It is what a bound on splits asks for again and again, with other values.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.splits.border_states import BorderStates
from heterps_envs.arrays import Floats
from heterps_envs.compiled import checked, checked_helper

MULTIPLIER_STEPS = 30


class BestSet(NamedTuple):
    """What `best_set` found.

    Attributes:
        upper: No set that the limit allows is worth more.
        sets: Some sets, as (n, G) booleans, best first. Their loads may exceed the limit by about
            the width of a cell.
    """

    upper: float
    sets: NDArray[np.bool_]


class _Items(NamedTuple):
    """Groups that a set may have, and the load that it may have.

    Attributes:
        value, seconds: (G,) of each group; inf seconds: it must stay out.
        limit_s: Load allowed.
    """

    value: Floats
    seconds: Floats
    limit_s: float


def best_set(
    states: BorderStates,
    value: Floats,
    seconds: Floats,
    limit_s: float,
    known: float,
    tolerance: float,
    num_cells: int = 1000,
    max_sets: int = 4,
) -> BestSet:
    """The most valuable set of groups whose load is within a limit.

    Args:
        states: Of the graph.
        value: (G,) of each group; may be negative.
        seconds: (G,) load of each group without its border; inf: it must stay out.
        limit_s: Load allowed.
        known: Sets worth no more than this are of no interest.
        tolerance: Nor are those that are worth less than this more.
        num_cells: Labels whose loads differ by less than the limit over this may become one.
        max_sets: Sets to return.
    """
    in_order = states.order
    value, seconds = value[in_order], seconds[in_order]
    items = _Items(value, seconds, float(limit_s))
    remaining = np.zeros(len(states.next_state) + 1)
    upper, multiplier = _least_multiplier(states, items, remaining)
    least = known + tolerance
    if upper <= least:
        return BestSet(max(upper, min(known, upper)), np.zeros((0, len(value)), np.bool_))
    most, bits = _label(states, items, multiplier, remaining, least, max_sets, num_cells)
    sets = np.zeros(bits.shape, np.bool_)
    sets[:, in_order] = bits
    return BestSet(min(upper, most), sets)


@checked
def _least_multiplier(s: Any, items: Any, remaining: Any) -> tuple[float, float]:
    """Least Lagrangian bound over the multipliers; leaves its completion values in `remaining`."""
    limit_s, low, high = items.limit_s, 0.0, 1.0
    bound, load = _complete(s, items, 0.0, remaining)
    if load <= limit_s:
        return bound, 0.0
    best, best_multiplier = bound, 0.0
    for _ in range(60):
        bound, load = _complete(s, items, high, remaining)
        if bound + high * limit_s < best:
            best, best_multiplier = bound + high * limit_s, high
        if load <= limit_s:
            break
        low, high = high, high * 2.0
    for _ in range(MULTIPLIER_STEPS):
        middle = 0.5 * (low + high)
        bound, load = _complete(s, items, middle, remaining)
        if bound + middle * limit_s < best:
            best, best_multiplier = bound + middle * limit_s, middle
        if load <= limit_s:
            high = middle
        else:
            low = middle
    _complete(s, items, best_multiplier, remaining)
    return best, best_multiplier


@checked_helper
def _complete(s: Any, items: Any, multiplier: float, remaining: Any) -> tuple[float, float]:
    """Most that value minus multiplier x load of the rest can reach, for every state.

    Returns:
        That of the start, and the load of the set that reaches it.
    """
    value, seconds = items.value, items.seconds
    groups = len(value)
    remaining[s.first[groups]] = 0.0
    for layer in range(groups - 1, -1, -1):
        gain = value[layer] - multiplier * seconds[layer] if seconds[layer] < np.inf else -np.inf
        for state in range(s.first[layer], s.first[layer + 1]):
            out = remaining[s.next_state[state, 0]] - multiplier * s.in_s[state, 0]
            taken = gain + remaining[s.next_state[state, 1]] - multiplier * s.in_s[state, 1]
            remaining[state] = max(out, taken)
    state, load = 0, 0.0
    for layer in range(groups):
        out = remaining[s.next_state[state, 0]] - multiplier * s.in_s[state, 0]
        if remaining[state] > out:
            load += seconds[layer] + s.in_s[state, 1]
            state = s.next_state[state, 1]
        else:
            load += s.in_s[state, 0]
            state = s.next_state[state, 0]
    return remaining[0], load


@checked
def _label(
    s: Any,
    items: Any,
    multiplier: float,
    remaining: Any,
    least: float,
    max_sets: int,
    num_cells: int,
) -> tuple[float, Any]:
    """Sets within the limit that are worth more than `least`, best first.

    Labels of one state whose loads share a cell become one, with the larger worth and the smaller
    load: worth and load are then optimistic, and so is the bound.

    Returns:
        The most that a set is worth, at most; the sets, in the order of the layers.
    """
    value, seconds, limit_s = items
    groups = len(value)
    scale = num_cells / limit_s
    size = 1 << 16
    parent, choice = np.empty(size, np.int32), np.empty(size, np.bool_)
    state, worth, load = np.zeros(1, np.int64), np.zeros(1), np.zeros(1)
    begin, stop = 0, 1
    for layer in range(groups):
        base, width = s.first[layer + 1], s.first[layer + 2] - s.first[layer + 1]
        cell_worth = np.full((width, num_cells + 1), -np.inf)
        cell_load = np.empty((width, num_cells + 1))
        cell_from = np.empty((width, num_cells + 1), np.int32)
        for label in range(len(state)):
            for take in range(2):
                now = load[label] + s.in_s[state[label], take]
                gain = worth[label]
                if take == 1:
                    now += seconds[layer]
                    gain += value[layer]
                target = s.next_state[state[label], take]
                possible = gain + remaining[target] + multiplier * (limit_s - now)
                if now <= limit_s and possible > least:
                    row, cell = target - base, int(now * scale)
                    if cell_worth[row, cell] == -np.inf:
                        cell_load[row, cell] = now
                    else:
                        cell_load[row, cell] = min(cell_load[row, cell], now)
                    if gain > cell_worth[row, cell]:
                        cell_worth[row, cell] = gain
                        cell_from[row, cell] = 2 * label + take
        count = 0
        for row in range(width):
            best = -np.inf
            for cell in range(num_cells + 1):
                if cell_worth[row, cell] > best:
                    best = cell_worth[row, cell]
                    count += 1
        while stop + count > size:
            size *= 2
            parent = np.concatenate((parent, np.empty(size - len(parent), np.int32)))
            choice = np.concatenate((choice, np.empty(size - len(choice), np.bool_)))
        state, worth, load = np.empty(count, np.int64), np.empty(count), np.empty(count)
        count = 0
        for row in range(width):
            best = -np.inf
            for cell in range(num_cells + 1):
                if cell_worth[row, cell] > best:
                    best = cell_worth[row, cell]
                    state[count], worth[count] = base + row, best
                    load[count] = cell_load[row, cell]
                    parent[stop + count] = begin + cell_from[row, cell] // 2
                    choice[stop + count] = cell_from[row, cell] % 2 == 1
                    count += 1
        begin, stop = stop, stop + count
    # With the load, the worth grows from label to label: the last ones are the best.
    rows = min(max_sets, stop - begin)
    sets = np.zeros((rows, groups), np.bool_)
    for row in range(rows):
        label = stop - 1 - row
        for layer in range(groups - 1, -1, -1):
            sets[row, layer] = choice[label]
            label = parent[label]
    return (max(worth[-1], least) if len(worth) > 0 else least), sets
