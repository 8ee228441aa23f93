"""Ranges of layers of which a node has some alone, and shares others with other nodes.

A layer whose owners are all on one node is a core layer of that node; sums of the others leave it.
Of layers a .. b on a device let c .. d - 1 reach from its first core layer to its last one. Sums of
all others leave the node, so the inequality of `shares` has their seconds across nodes; those of
layers within c .. d - 1 are taken to stay. Only the narrowest cores for each share are kept: wider
ones keep more layers from other nodes, and do no more.

Of many layers c and d are looked at on a grid: sums are those of the next wider core on it, and
other nodes are kept from what all cores between two places have in common.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.compiled import ZERO, allocating, inlined, uncounted_helper
from heterps_envs.step_bounds.shares import least_owners, summed_share, whole

# Columns of what is found: option, first layer, the one after the last, and c and d.
OPTION, FIRST, STOP, CORE, CORE_STOP = 0, 1, 2, 3, 4

# Places on the grid, about.
PLACES = 16


@uncounted_helper
def grid_of(num_layers: int) -> int:
    """Layers from one place to the next."""
    return max(1, num_layers // PLACES)


@allocating
def spread_ranges(n: Any, step_s: float, most: Any, shares: Any, rows: Any, row_shares: Any) -> int:
    """Writes ranges with layers of other nodes, too; those without any core have c and d alike.

    Args:
        n: `Needs`.
        step_s: T.
        most: See `shares.most_shares`.
        shares: (O, L, L) wherever the owners are.
        rows: (N, 5) the columns above; written to.
        row_shares: (N,) of all micro-batches; written to.

    Returns:
        How many were found; more than N: those behind are missing.
    """
    num_options, num_layers = shares.shape[:2]
    grid = grid_of(num_layers)
    table = np.zeros((num_layers + 2, num_layers + 2))
    count: int = ZERO
    for option in range(num_options):
        for first in range(num_layers):
            for stop in range(first + 1, num_layers + 1):
                share = min(shares[option, first, stop - 1] * n.total, n.total - n.unit)
                if share < 0:
                    break
                if share == 0 or n.total <= n.unit:
                    continue
                owners = least_owners(n, share, most[first, stop - 1])
                span = (option, first, stop, ZERO, ZERO)
                none = _fill(n, step_s, span, owners, share, grid, table)
                count = _keep(n, span, none, table, grid, count, rows, row_shares)
    return count


@inlined
def _fill(
    n: Any, step_s: float, span: Any, owners: int, share: float, grid: int, table: Any
) -> float:
    """Writes micro-batches with each core, by places on the grid; returns those without one."""
    _, first, stop, _, _ = span
    none = _micro_batches(n, step_s, span, owners, share, (first, first))
    begin, end = first // grid, -(-stop // grid)
    table[begin : end + 1, begin : end + 1] = 0.0
    if owners > n.node_size[n.class_of[span[0]]]:
        return none
    for core in range(begin, end):
        for core_stop in range(end, core, -1):
            wide = max(core * grid, first), min(core_stop * grid, stop)
            found = _micro_batches(n, step_s, span, owners, share, wide)
            table[core, core_stop] = found
            if found <= none:
                break
        if table[core, end] <= none:
            break
    return none


@uncounted_helper
def _keep(
    n: Any, span: Any, none: float, table: Any, grid: int, count: int, rows: Any, row_shares: Any
) -> int:
    """Adds what no narrower core does as well; returns the new count."""
    _, first, stop, _, _ = span
    if none > 0:
        count = add_row(span, (first, first), none / n.total, count, rows, row_shares)
    for core in range(first // grid, -(-stop // grid)):
        for core_stop in range(core + 1, -(-stop // grid) + 1):
            share = table[core, core_stop]
            if share > max(none, table[core + 1, core_stop], table[core, core_stop - 1]):
                surely = _surely(core, core_stop, grid, first)
                count = add_row(span, surely, share / n.total, count, rows, row_shares)
    return count


@uncounted_helper
def _surely(core: int, core_stop: int, grid: int, first: int) -> Any:
    """Layers within all cores that begin, and end, at most a step inside of two places.

    None are said by a core without layers.
    """
    begin, end = (core + 1) * grid - 1, (core_stop - 1) * grid + 1
    return (begin, end) if begin < end else (first, first)


@uncounted_helper
def add_row(span: Any, core: Any, share: float, count: int, rows: Any, row_shares: Any) -> int:
    """Adds a range where there is room; returns the new count."""
    if count < len(rows):
        rows[count, OPTION], rows[count, FIRST], rows[count, STOP] = span[0], span[1], span[2]
        rows[count, CORE], rows[count, CORE_STOP] = core
        row_shares[count] = share
    return count + 1


@inlined
def _micro_batches(n: Any, step_s: float, span: Any, owners: int, most: float, core: Any) -> float:
    """With these core layers, and no more than `most`."""
    option, first, stop, _, _ = span
    b, after_s = n.backward_s, 0.0
    for at in (first, core[0] - 1, core[1] - 1, stop - 1):
        if first <= at and (n.overlaps or at == stop - 1):
            passed = at if n.overlaps else first
            own_s = b[stop, option] - b[passed, option]
            own_s += _seconds(n.sums.sum_s, owners, option, (first, at + 1), core)
            own_s += _seconds(n.sums.rest_s, owners, option, (at + 1, stop), core)
            after_s = max(after_s, own_s)
    after_s += n.sums.wait_s[0, owners, n.class_of[option]]
    return max(0.0, min(most, whole(n, summed_share(n, step_s, span, after_s))))


@uncounted_helper
def _seconds(sums: Any, owners: int, option: int, span: Any, core: Any) -> float:
    """Of layers of a span, those of the core on the node and others across nodes."""
    first, stop = span
    begin, end = min(max(core[0], first), stop), min(max(core[1], first), stop)
    near, far = sums[0, owners], sums[1, owners]
    found = far[begin, option] - far[first, option] + far[stop, option] - far[end, option]
    return float(found + near[end, option] - near[begin, option])
