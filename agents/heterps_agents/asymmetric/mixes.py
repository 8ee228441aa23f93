"""Pipelines chosen so that within a time they get through most micro-batches: a knapsack.

The devices of each class are the room, a multiset of devices is a thing, and its worth are the
micro-batches that its best pipeline is done with in time. Where there are too many states for that,
things are taken by their worth over the prices of their devices, which fit better from one round to
the next.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from heterps_agents.asymmetric.pipes import Pipes
from heterps_envs.arrays import Floats, Integers
from heterps_envs.compiled import checked

# States of the knapsack, and things: products of at most so many.
MOST_STATES, MOST_WORK = 20_000, 3e6
# Pipelines that are told apart by their number; the last number stands for more, too.
MOST_APART = 8
# The least time is found to this share of itself.
PRECISION = 2e-3
# Mixes are sought within these times the least time in which one gets through.
SLACK = (1.0, 1.02, 1.05, 1.1)
# Rounds of prices.
ROUNDS = 24

# Indices of pipelines, in order.
Mix = tuple[int, ...]


class Mixes(NamedTuple):
    """What the knapsack found.

    Attributes:
        least_s: The least time in which a mix gets through all micro-batches.
        found: Mixes, the most promising first.
    """

    least_s: float
    found: tuple[Mix, ...]


def good_mixes(pipes: Pipes, device_count: Integers, total: int, limit_s: float) -> Mixes | None:
    """Mixes of two pipelines or more that get through all micro-batches within a limit.

    Args:
        pipes: To choose from.
        device_count: (T,) devices there are.
        total: Micro-batches.
        limit_s: The limit.

    Returns:
        None where there are none.
    """
    if not _is_enough(pipes, device_count, total, limit_s):
        return None
    low, high = 0.0, limit_s
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        low, high = (
            (low, middle) if _is_enough(pipes, device_count, total, middle) else (middle, high)
        )
    found = dict[Mix, None]()
    for slack in SLACK:
        for mix in _mixes_within(pipes, device_count, total, high * slack):
            found.setdefault(mix)
    return Mixes(high, tuple(found))


def _is_enough(pipes: Pipes, device_count: Integers, total: int, seconds: float) -> bool:
    worth = _worth(pipes, seconds)
    return any(
        sum(worth[vector] for vector in vectors) >= total
        for vectors in _vectors_within(pipes, worth, device_count)
    )


def _mixes_within(
    pipes: Pipes, device_count: Integers, total: int, seconds: float
) -> Iterator[Mix]:
    within, worth = pipes.within(seconds), _worth(pipes, seconds)
    for vectors in _vectors_within(pipes, worth, device_count):
        if len(vectors) > total:
            continue
        mix = []
        for vector in vectors:
            own = np.flatnonzero(pipes.vector == vector)
            mix.append(int(own[within[own].argmax()]))
        yield tuple(sorted(mix))


def _worth(pipes: Pipes, seconds: float) -> Floats:
    """(V,) micro-batches that the best pipeline of each multiset is done with in time."""
    worth = np.zeros(len(pipes.counts.vectors))
    np.maximum.at(worth, pipes.vector, pipes.within(seconds))
    return worth


def _vectors_within(pipes: Pipes, worth: Floats, device_count: Integers) -> Iterator[list[int]]:
    """Multisets, two or more, that are worth most together: of two, of three, and so on."""
    vectors = pipes.counts.vectors
    useful = np.flatnonzero(worth > 0)
    useful = useful[_undominated(worth[useful], vectors[useful])]
    states = float(np.prod(device_count + 1.0))
    if states > MOST_STATES:
        yield from _by_prices(worth, vectors, useful, device_count)
        return
    affordable = MOST_WORK / max(states * len(useful), 1.0)
    most = int(min(MOST_APART, device_count.sum(), max(2.0, affordable)))
    chosen, strides = _knapsack(worth[useful], vectors[useful], device_count, most)
    for number in range(2, most + 1):
        found = _traced(chosen, strides, vectors[useful], number)
        if len(found) > 1:
            yield [int(useful[index]) for index in found]


def _knapsack(
    worth: Floats, vectors: Integers, device_count: Integers, most: int
) -> tuple[Integers, Integers]:
    """(most + 1, states) the last thing that was put in, and (T,) the strides of states."""
    strides = np.cumprod([1, *(device_count[:-1] + 1)]).astype(np.int64)
    states = int(np.prod(device_count + 1))
    best, chosen = np.zeros((most + 1, states)), np.full((most + 1, states), -1, np.int64)
    _fill(worth, vectors, device_count, vectors @ strides, best, chosen)
    return chosen, strides


def _traced(chosen: Integers, strides: Integers, vectors: Integers, number: int) -> list[int]:
    """The things of the best mix of so many; of the last number, or more."""
    most, at, found = len(chosen) - 1, chosen.shape[1] - 1, list[int]()
    left = number
    while left > 0:
        code = int(chosen[left, at])
        if code < 0:
            return []
        index, is_again = code // 2, code % 2
        found.append(index)
        at -= int(vectors[index] @ strides)
        left = most if is_again else left - 1
    return found


def _by_prices(
    worth: Floats, vectors: Integers, useful: Integers, device_count: Integers
) -> Iterator[list[int]]:
    """Mixes that take whatever is worth most for the prices of its devices, as often as it fits."""
    own = vectors[useful]
    prices = np.array([(worth[useful] / np.maximum(own[:, kind], 1))[own[:, kind] > 0].max(
        initial=1e-9) for kind in range(len(device_count))])  # fmt: skip
    for _ in range(ROUNDS):
        left, found = device_count.copy(), list[int]()
        for index in np.argsort(-worth[useful] / np.maximum(own @ prices, 1e-30), kind="stable"):
            taken = own[index] > 0
            times = int((left[taken] // own[index][taken]).min())
            found += [int(useful[index])] * times
            left -= times * own[index]
            if not left.any():
                break
        if len(found) > 1:
            yield found
        # What is left over was too dear, what is used up too cheap.
        prices *= np.where(left > 0, 0.8, 1.1)


@checked
def _undominated(worth: Any, vectors: Any) -> Any:
    """Whether no multiset of fewer devices is worth as much."""
    count, num_classes = vectors.shape
    keep = np.ones(count, np.bool_)
    for index in range(count):
        for other in range(count):
            if other == index or worth[other] < worth[index]:
                continue
            is_less, is_equal = True, True
            for kind in range(num_classes):
                is_less &= vectors[other, kind] <= vectors[index, kind]
                is_equal &= vectors[other, kind] == vectors[index, kind]
            if is_less and not is_equal:
                keep[index] = False
                break
    return keep


@checked
def _fill(
    worth: Any, vectors: Any, device_count: Any, offsets: Any, best: Any, chosen: Any
) -> None:
    """Writes the knapsack: twice the index of the thing, and 1 where the number stays the last."""
    num_classes, size, most = len(device_count), best.shape[1], best.shape[0] - 1
    used = np.zeros(num_classes, np.int64)
    for at in range(size):
        rest = at
        for kind in range(num_classes):
            used[kind] = rest % (device_count[kind] + 1)
            rest //= device_count[kind] + 1
        for index in range(len(worth)):
            fits = True
            for kind in range(num_classes):
                fits &= vectors[index, kind] <= used[kind]
            if not fits:
                continue
            before = at - offsets[index]
            for number in range(1, most + 1):
                if number > 1 and chosen[number - 1, before] < 0:
                    break
                value = worth[index] + best[number - 1, before]
                if value > best[number, at]:
                    best[number, at], chosen[number, at] = value, 2 * index
            if chosen[most, before] >= 0:
                value = worth[index] + best[most, before]
                if value > best[most, at]:
                    best[most, at], chosen[most, at] = value, 2 * index + 1
