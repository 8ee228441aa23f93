"""Sets of device classes: a problem on some of its classes, and placements back on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from heterps_envs.closed_form.formula import OPTION_MASK
from heterps_envs.cost_tables import CostTables

# All subsets of so many device classes are tried; of more, only the cheapest ones for the work.
MOST_CLASSES = 4


def class_subsets(tables: CostTables) -> Iterator[tuple[int, ...]]:
    """Sets of device classes that might be all that a cheap placement uses, the likeliest first."""
    dollars = (tables.compute_s * tables.price_usd_per_hour).sum(axis=0)
    cheapest_first = [int(kind) for kind in np.argsort(dollars, kind="stable")]
    if tables.num_classes > MOST_CLASSES:
        for size in range(1, tables.num_classes + 1):
            yield tuple(sorted(cheapest_first[:size]))
        return
    for size in range(1, tables.num_classes + 1):
        for subset in combinations(cheapest_first, size):
            yield tuple(sorted(subset))


def restricted(tables: CostTables, classes: Sequence[int]) -> CostTables:
    """The problem with some device classes only; each has one option."""
    assert tables.num_options == tables.num_classes
    kept = list(classes)
    both = np.ix_(kept, kept)
    return replace(
        tables,
        forward_s=tables.forward_s[:, kept],
        backward_s=tables.backward_s[:, kept],
        optimizer_s=tables.optimizer_s[:, kept],
        device_count=tables.device_count[kept],
        memory_bytes=tables.memory_bytes[kept],
        price_usd_per_hour=tables.price_usd_per_hour[kept],
        latency_s=tables.latency_s[both],
        inverse_bandwidth_s_per_byte=tables.inverse_bandwidth_s_per_byte[both],
        rings=tables.rings and tables.rings.of_classes(kept),
    )


def renamed(codes: NDArray[np.int16], names: NDArray[np.int16]) -> NDArray[np.int16]:
    """Codes with class i replaced by `names[i]`."""
    kinds = np.minimum(codes & OPTION_MASK, len(names) - 1)
    return np.asarray((codes & ~OPTION_MASK) | names[kinds], np.int16)
