"""Compiled: where lanes are cut so that the slowest of their parts takes as little as can be."""

from __future__ import annotations

from typing import Any

from heterps_envs.compiled import uncounted, uncounted_helper

# Of the time of the slowest part.
HALVINGS = 12


@uncounted
def cut_evenly(t: Any, columns: Any, replicas: Any, edges: Any, tried: Any) -> None:
    """Finds the least time of the slowest part by halving it, and writes the cuts for that.

    Args:
        t: `LaneTables`.
        columns: (P,) of the parts.
        replicas: (P,) that take turns.
        edges: (P + 1,) the first layer of each part, and that behind the last; those between are
            written over where parts can be cut so.
        tried: (P + 1,) written over.
    """
    size = len(columns)
    low, high = 0.0, 0.0
    for i in range(size):
        high = max(high, _seconds(t, columns[i], edges[i], edges[i + 1]) / replicas[i])
    tried[0] = edges[0]
    for _ in range(HALVINGS):
        middle, is_enough = (low + high) / 2, True
        for i in range(size):
            # Each part behind it needs a layer.
            most = edges[size] - size + i + 1
            tried[i + 1] = _last_within(t, columns[i], tried[i], most, middle * replicas[i])
            is_enough &= tried[i] < tried[i + 1]
        is_enough &= tried[size] >= edges[size]
        if is_enough:
            high = middle
            for i in range(1, size):
                edges[i] = tried[i]
        else:
            low = middle


@uncounted
def even_cut(t: Any, front: int, back: int, first: int, stop: int) -> int:
    """The cut of two layers or more between two devices for which the slower one takes least.

    Args:
        t: `LaneTables`.
        front: Column of the first half.
        back: Column of the other half.
        first: The first layer.
        stop: The layer behind the last.
    """
    low, high = first + 1, stop - 1
    while low < high:
        middle = (low + high) // 2
        if _seconds(t, front, first, middle) >= _seconds(t, back, middle, stop):
            high = middle
        else:
            low = middle + 1
    if low - 1 == first:
        return low
    sooner_s = max(_seconds(t, front, first, low - 1), _seconds(t, back, low - 1, stop))
    later_s = max(_seconds(t, front, first, low), _seconds(t, back, low, stop))
    return low - 1 if sooner_s <= later_s else low


@uncounted_helper
def _seconds(t: Any, column: int, first: int, stop: int) -> float:
    """Of a micro-batch through layers `first .. stop - 1`, forth and back."""
    forward_s = t.forward_s[column, stop] - t.forward_s[column, first]
    seconds: float = forward_s + t.backward_s[column, stop] - t.backward_s[column, first]
    return seconds


@uncounted_helper
def _last_within(t: Any, column: int, first: int, most: int, seconds: float) -> int:
    """The last cut, at most `most`, up to which layers from `first` on take no longer.

    It is `first` where not even one layer does.
    """
    low, high = first, most
    while low < high:
        middle = (low + high + 1) // 2
        if _seconds(t, column, first, middle) <= seconds:
            low = middle
        else:
            high = middle - 1
    return low
