"""Binary heaps in arrays, for the compiled schedulers: of events by time, and of numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_envs.compiled import helper

# Row 0 of a heap of events holds how many there are, and how many there have been; every other
# row one event.
SIZE, PUSHED = 0, 1
TIME, NUMBER, CODE = 0, 1, 2


def event_heap(capacity: int) -> NDArray[np.float64]:
    """(capacity + 1, 3) an empty heap of events (time, number, code); the first is in row 1.

    Of events of one time the one that was pushed first comes first.
    """
    return np.zeros((capacity + 1, 3))


@helper
def push_event(heap: Any, time_s: float, code: int) -> None:
    """Adds an event."""
    heap[0, SIZE] += 1
    heap[0, PUSHED] += 1
    at = int(heap[0, SIZE])
    while at > 1:
        parent = at >> 1
        if heap[parent, TIME] <= time_s:  # an older event never has to give way to an equal one
            break
        heap[at, TIME], heap[at, NUMBER] = heap[parent, TIME], heap[parent, NUMBER]
        heap[at, CODE] = heap[parent, CODE]
        at = parent
    heap[at, TIME], heap[at, NUMBER], heap[at, CODE] = time_s, heap[0, PUSHED], code


@helper
def pop_event(heap: Any) -> int:
    """Removes the first event and returns its code; its time is `heap[1, TIME]` before."""
    first, size = int(heap[1, CODE]), int(heap[0, SIZE])
    time_s, number = heap[size, TIME], heap[size, NUMBER]
    heap[0, SIZE] = size - 1
    at = 1
    while 2 * at < size:
        child = 2 * at
        if child + 1 < size and (
            heap[child + 1, TIME] < heap[child, TIME]
            or (
                heap[child + 1, TIME] == heap[child, TIME]
                and heap[child + 1, NUMBER] < heap[child, NUMBER]
            )
        ):
            child += 1
        if time_s < heap[child, TIME] or (
            time_s == heap[child, TIME] and number < heap[child, NUMBER]
        ):
            break
        heap[at, TIME], heap[at, NUMBER] = heap[child, TIME], heap[child, NUMBER]
        heap[at, CODE] = heap[child, CODE]
        at = child
    heap[at, TIME], heap[at, NUMBER], heap[at, CODE] = time_s, number, heap[size, CODE]
    return first


@helper
def push_number(heaps: Any, row: int, size: int, value: int) -> None:
    """Adds a number to the heap `heaps[row, :size]`, whose smallest is `heaps[row, 0]`."""
    at = size
    while at > 0:
        parent = (at - 1) >> 1
        if heaps[row, parent] <= value:
            break
        heaps[row, at] = heaps[row, parent]
        at = parent
    heaps[row, at] = value


@helper
def pop_number(heaps: Any, row: int, size: int) -> int:
    """Removes the smallest of `heaps[row, :size]` and returns it."""
    first, value, at = heaps[row, 0], heaps[row, size - 1], 0
    while 2 * at + 1 < size - 1:
        child = 2 * at + 1
        if child + 1 < size - 1 and heaps[row, child + 1] < heaps[row, child]:
            child += 1
        if value <= heaps[row, child]:
            break
        heaps[row, at] = heaps[row, child]
        at = child
    heaps[row, at] = value
    return int(first)
