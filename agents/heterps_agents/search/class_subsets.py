"""Sets of device classes: a problem on some of its classes, and placements back on all of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from heterps_envs.closed_form.formula import OPTION_MASK
from heterps_envs.cost_tables import CostTables
from heterps_envs.useful_options import with_columns

# All subsets of so many device classes are tried; of more, only the cheapest ones for the work.
MOST_CLASSES = 4


def class_subsets(tables: CostTables) -> Iterator[tuple[int, ...]]:
    """Sets of device classes that might be all that a cheap placement uses, the likeliest first.

    A class without options is in none: no placement uses it.
    """
    has_options = np.isin(np.arange(tables.num_classes), tables.stage_options.class_of_option)
    by_option = (tables.compute_s * tables.price_usd_per_hour).sum(axis=0)
    dollars = np.full(tables.num_classes, np.inf)
    np.minimum.at(dollars, tables.stage_options.class_of_option, by_option)
    order = np.argsort(dollars, kind="stable")
    cheapest_first = [int(kind) for kind in order if has_options[kind]]
    sizes = range(1, len(cheapest_first) + 1)
    if len(cheapest_first) > MOST_CLASSES:
        for size in sizes:
            yield tuple(sorted(cheapest_first[:size]))
        return
    for size in sizes:
        for subset in combinations(cheapest_first, size):
            yield tuple(sorted(subset))


def options_on(tables: CostTables, classes: Sequence[int]) -> list[int]:
    """The options of some device classes."""
    return [int(i) for i in np.flatnonzero(np.isin(tables.stage_options.class_of_option, classes))]


def restricted(tables: CostTables, classes: Sequence[int]) -> CostTables:
    """The problem with some device classes only, in their order, and with their options."""
    kept = list(classes)
    if tables.options is not None:
        named = {kind: index for index, kind in enumerate(kept)}
        own = with_columns(tables, options_on(tables, kept))
        assert own.options is not None
        of_class = np.array([named[int(kind)] for kind in own.options.class_of_option], np.int64)
        options = replace(own.options, class_of_option=of_class)
        return replace(own, device_count=tables.device_count[kept], options=options)
    return replace(tables.of_columns(kept), device_count=tables.device_count[kept])


def renamed(codes: NDArray[np.int32], names: NDArray[np.int32]) -> NDArray[np.int32]:
    """Codes with class, or option, i replaced by `names[i]`."""
    kinds = np.minimum(codes & OPTION_MASK, len(names) - 1)
    return np.asarray((codes & ~OPTION_MASK) | names[kinds], np.int32)
