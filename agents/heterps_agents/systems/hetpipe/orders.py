"""Where a virtual worker has too many orders of its devices to look at all: swaps of two."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations

import numpy as np

from heterps_agents.systems.hetpipe.kernels import least_slowest_in
from heterps_agents.systems.hetpipe.tables import WorkerTables
from heterps_envs.arrays import Integers

# Transitions of the dynamic programmes of all orders together, less than a second.
MAX_SWAP_WORK = 100_000_000
# A swap has to shorten the slowest stage by such a share.
_GAIN = 1e-9


def by_swaps(tables: WorkerTables, in_flight: int) -> Integers:
    """(K, 2) kind and first layer of each stage from the front; no rows where none is found.

    The best of simple orders, as long as a swap of two devices makes it better. In each order the
    layers are the best.
    """
    compute_s, state, kept = tables.summed

    def slowest(order: Integers) -> tuple[float, Integers]:
        return least_slowest_in(
            order,
            compute_s,
            state,
            kept,
            tables.cut_bytes,
            tables.memory_bytes,
            tables.links,
            in_flight,
            tables.all_at_once,
        )

    left = MAX_SWAP_WORK // (tables.num_stages * tables.num_layers**2 // 2)
    order = min(_starts(tables), key=lambda each: slowest(each)[0])
    least_s, cuts = slowest(order)
    if least_s == np.inf:
        return np.zeros((0, 2), np.int64)
    is_better = True
    while is_better and left > 0:
        is_better = False
        for a, b in combinations(range(len(order)), 2):
            if order[a] == order[b] or left <= 0:
                continue
            left -= 1
            swapped = order.copy()
            swapped[[a, b]] = order[[b, a]]
            found_s, found = slowest(swapped)
            if found_s < least_s * (1 - _GAIN):
                order, least_s, cuts, is_better = swapped, found_s, found, True
    return np.stack([order, cuts], axis=1)


def _starts(tables: WorkerTables) -> Iterator[Integers]:
    """As the devices are given, and by memory and by speed, in both directions."""
    kinds = np.arange(len(tables.counts))
    for key in (kinds, tables.memory_bytes, tables.compute_s.sum(axis=1)):
        order = np.repeat(
            *(each[np.argsort(key, kind="stable")] for each in (kinds, tables.counts))
        )
        yield order
        yield order[::-1].copy()
