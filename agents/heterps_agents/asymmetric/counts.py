"""Multisets of devices: how many of each class a pipeline takes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Integers


class Counts(NamedTuple):
    """V vectors of devices of T classes, those with fewer devices first.

    Attributes:
        vectors: (V, T) devices of each class; the first has none.
        less: (V, T) index of the vector with one device of a class less; -1: it has none.
        totals: (V,) devices of all classes.
    """

    vectors: Integers
    less: Integers
    totals: Integers


def counts_up_to(most: Sequence[int], most_devices: int) -> Counts:
    """All vectors within limits.

    Args:
        most: Devices of each class.
        most_devices: Of all classes together.
    """
    found = sorted(_vectors(list(most), most_devices), key=lambda vector: (sum(vector), vector))
    index = {vector: number for number, vector in enumerate(found)}
    less = np.full((len(found), len(most)), -1, np.int64)
    for number, vector in enumerate(found):
        for kind, count in enumerate(vector):
            if count:
                one_less = (*vector[:kind], count - 1, *vector[kind + 1 :])
                less[number, kind] = index[one_less]
    vectors = np.array(found, np.int64)
    return Counts(vectors, less, vectors.sum(axis=1))


def num_counts(most: Sequence[int], most_devices: int) -> int:
    """How many vectors `counts_up_to` has."""
    ways = np.zeros(most_devices + 1, dtype=object)
    ways[0] = 1
    for count in most:
        before = ways.copy()
        for taken in range(1, min(count, most_devices) + 1):
            ways[taken:] += before[: most_devices + 1 - taken]
    return int(ways.sum())


def _vectors(most: list[int], most_devices: int) -> Iterator[tuple[int, ...]]:
    if not most:
        yield ()
        return
    for count in range(min(most[0], most_devices) + 1):
        for rest in _vectors(most[1:], most_devices - count):
            yield (count, *rest)
