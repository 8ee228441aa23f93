"""Binary heaps in arrays, for the compiled schedulers: of events by time, and of numbers."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray


class EventHeap(NamedTuple):
    """Events by time; of equal times the one that was pushed first.

    Attributes:
        size: (2,) how many events there are, and how many there have been.
        time_s: (capacity,)
        number: (capacity,) how many were pushed before.
        code: (capacity,) what happens.
    """

    size: NDArray[np.int64]
    time_s: NDArray[np.float64]
    number: NDArray[np.int64]
    code: NDArray[np.int64]


def event_heap(capacity: int) -> EventHeap:
    """An empty heap."""
    return EventHeap(
        np.zeros(2, np.int64),
        np.empty(capacity),
        np.empty(capacity, np.int64),
        np.empty(capacity, np.int64),
    )


@njit(cache=True)
def push_event(heap: Any, time_s: float, code: int) -> None:
    """Adds an event."""
    at, number = heap.size[0], heap.size[1]
    heap.size[0] += 1
    heap.size[1] += 1
    while at > 0:
        parent = (at - 1) >> 1
        if heap.time_s[parent] <= time_s:  # an older event never has to give way to an equal one
            break
        heap.time_s[at] = heap.time_s[parent]
        heap.number[at] = heap.number[parent]
        heap.code[at] = heap.code[parent]
        at = parent
    heap.time_s[at], heap.number[at], heap.code[at] = time_s, number, code


@njit(cache=True)
def pop_event(heap: Any) -> int:
    """Removes the first event and returns its code; its time is `heap.time_s[0]` before."""
    first = heap.code[0]
    heap.size[0] -= 1
    size = heap.size[0]
    time_s, number, code = heap.time_s[size], heap.number[size], heap.code[size]
    at = 0
    while True:
        child = 2 * at + 1
        if child >= size:
            break
        other = child + 1
        if other < size and (
            heap.time_s[other] < heap.time_s[child]
            or (
                heap.time_s[other] == heap.time_s[child] and heap.number[other] < heap.number[child]
            )
        ):
            child = other
        if time_s < heap.time_s[child] or (
            time_s == heap.time_s[child] and number < heap.number[child]
        ):
            break
        heap.time_s[at] = heap.time_s[child]
        heap.number[at] = heap.number[child]
        heap.code[at] = heap.code[child]
        at = child
    heap.time_s[at], heap.number[at], heap.code[at] = time_s, number, code
    return int(first)


@njit(cache=True)
def push_number(values: Any, size: int, value: int) -> None:
    """Adds a number to the heap `values[:size]`, whose smallest is `values[0]`."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if values[parent] <= value:
            break
        values[at] = values[parent]
        at = parent
    values[at] = value


@njit(cache=True)
def pop_number(values: Any, size: int) -> int:
    """Removes the smallest of `values[:size]` and returns it."""
    first, value, at = values[0], values[size - 1], 0
    while True:
        child = 2 * at + 1
        if child >= size - 1:
            break
        if child + 1 < size - 1 and values[child + 1] < values[child]:
            child += 1
        if value <= values[child]:
            break
        values[at] = values[child]
        at = child
    values[at] = value
    return int(first)
