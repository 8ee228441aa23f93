"""AutoHete's integer programme: a way for each layer, so that all fit and take least seconds.

    min  sum over l of seconds[l, way of l]
    s.t. sum over l of held[l, way of l] + sum over cuts of kept[c] + sum over k of most[k] <= room
         kept[c] = max(front[c, way of the layer in front], back[c, way of the layer behind])
         most[k] = max over l of once[k, l, way of l]

A tensor that crosses the cut between two layers is there once, whoever keeps it: hence `kept`. What
one layer at a time needs, while it is computed again or its bytes are on their way, counts once:
hence `most`. Both are continuous, and as small as the ways let them be.

Layers that are equal in every number are a unit: whole numbers say how many of them go each way,
and a binary one for each way whether any does. Without that, a model of eighty equal blocks has
eighty times as many binary ones, and as many equal answers as there are orders of its blocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from heterps_agents.systems.autohete.ways import LayerWays
from heterps_envs.arrays import Floats, Integers

# Of more cuts that both sides may keep, each side's part is counted: else a model of fifty equal
# layers takes minutes. It is too much where both sides keep it, by less than a tensor for each cut.
MOST_CUTS = 12
# HiGHS keeps a constraint to about 1e-6 of its numbers, and these are shares of the room.
_TOLERANCE = 2e-6


class Choice(NamedTuple):
    """The best ways.

    Attributes:
        ways: (n,) of each layer.
        seconds: That they take in sum.
    """

    ways: Integers
    seconds: float


def best_ways(layers: LayerWays, room_bytes: float) -> Choice | None:
    """The ways of least seconds that fit; None where no ways do.

    Args:
        layers: What each way of each layer takes.
        room_bytes: For all of them together.
    """
    fastest: Integers = np.argmin(layers.seconds, axis=1)
    found: Integers | None = fastest
    # Most often there is room for what takes least seconds, and nothing to choose.
    if layers.bytes_of(fastest) > room_bytes:
        may_fit = least_bytes(layers) <= room_bytes
        found = _Programme(layers, room_bytes).solved() if may_fit else None
    if found is not None and layers.bytes_of(found) > room_bytes:
        found = _Programme(layers, room_bytes * (1 - _TOLERANCE)).solved()
    if found is None:
        return None
    found = _plainest(layers, room_bytes, found)
    return Choice(found, float(layers.seconds[np.arange(len(found)), found].sum()))


def _plainest(layers: LayerWays, room_bytes: float, ways: Integers) -> Integers:
    """The first ways that take no longer and fit, layer by layer: an offload may cost nothing."""
    ways = ways.copy()
    for layer, way in enumerate(ways.tolist()):
        for other in range(way):
            changed = np.where(np.arange(len(ways)) == layer, other, ways)
            is_as_fast = layers.seconds[layer, other] <= layers.seconds[layer, way]
            if is_as_fast and layers.bytes_of(changed) <= room_bytes:
                ways = changed
                break
    return ways


def least_bytes(layers: LayerWays) -> float:
    """No ways take less: each layer and each thing goes the way that is best for it alone."""
    is_open = np.isfinite(layers.seconds)
    held = np.where(is_open, layers.held_bytes, np.inf).min(axis=1)
    once = np.where(is_open, layers.once_bytes, np.inf).min(axis=2).max(axis=1)
    return float(held.sum() + once.sum())


class _Programme:
    """Columns: for each unit and way its layers, and whether there are any; `kept`; `most`.

    Bytes are shares of the room, seconds of what the slowest ways take.
    """

    def __init__(self, layers: LayerWays, room_bytes: float) -> None:
        self.layers, self.share = layers, 1.0 / room_bytes
        num_layers, self.num_ways = layers.seconds.shape
        front, back = layers.front_bytes, layers.back_bytes
        # A cut of which one side alone may keep something is a part of that side's layer.
        is_shared = np.asarray(front.any(axis=1) & back.any(axis=1))
        if is_shared.sum() > MOST_CUTS:
            is_shared[:] = False
        self.cuts = np.flatnonzero(is_shared).tolist()
        self.held = layers.held_bytes.copy()
        self.held[:-1] += np.where(is_shared[:, None], 0.0, front)
        self.held[1:] += np.where(is_shared[:, None], 0.0, back)
        beside_cut = {*self.cuts, *(cut + 1 for cut in self.cuts)}
        self.units = self._units(num_layers, beside_cut)
        self.unit_of = {layer: index for index, own in enumerate(self.units) for layer in own}
        self.size = len(self.units) * self.num_ways
        self.num_columns = 2 * self.size + len(self.cuts) + len(layers.once_bytes)

    def _units(self, num_layers: int, beside_cut: set[int]) -> list[list[int]]:
        """Layers that are equal; those that share a cut with a neighbour stand alone."""
        once = np.moveaxis(self.layers.once_bytes, 0, -1)

        def key(layer: int) -> tuple[int, bytes, bytes, bytes]:
            rows = self.layers.seconds[layer], self.held[layer], once[layer]
            seconds, held, at_once = (row.tobytes() for row in rows)
            return layer if layer in beside_cut else -1, seconds, held, at_once

        return [list(own) for _, own in groupby(sorted(range(num_layers), key=key), key=key)]

    def solved(self) -> Integers | None:
        """(n,) the ways, those of equal layers in the order of the ways; None: nothing fits."""
        first = [own[0] for own in self.units]
        counts = np.repeat([float(len(own)) for own in self.units], self.num_ways)
        seconds = self.layers.seconds[first].ravel()
        is_open = np.isfinite(seconds)
        seconds = np.where(is_open, seconds, 0.0)
        num_sizes = self.num_columns - 2 * self.size
        found = milp(
            np.concatenate(
                [seconds / max(float(counts @ seconds), 1e-300), np.zeros(self.size + num_sizes)]
            ),
            constraints=[
                self._ways(counts),
                self._sizes(first, counts),
                self._fits(first, num_sizes),
            ],
            bounds=Bounds(
                np.zeros(self.num_columns),
                np.concatenate([counts * is_open, is_open, np.full(num_sizes, np.inf)]),
            ),
            integrality=np.repeat([1, 0], [2 * self.size, num_sizes]),
            options={"mip_rel_gap": 0.0},
        )
        if found.x is None:
            return None
        ways = np.empty(len(self.unit_of), np.int64)
        chosen = np.rint(found.x[: self.size]).astype(int).reshape(-1, self.num_ways)
        for own, numbers in zip(self.units, chosen, strict=True):
            ways[own] = np.repeat(np.arange(self.num_ways), numbers)
        return ways

    def _ways(self, counts: Floats) -> LinearConstraint:
        """Each layer goes one way."""
        rows, whole = _Rows(self.num_columns), counts[:: self.num_ways]
        for unit in range(len(self.units)):
            rows.add((column, 1.0) for column in self._columns(unit))
        return LinearConstraint(rows.matrix(), whole, whole)

    def _sizes(self, first: list[int], counts: Floats) -> LinearConstraint:
        """`kept` and `most` are as large as the ways ask for."""
        rows, layers = _Rows(self.num_columns), self.layers
        for index, cut in enumerate(self.cuts):
            for layer, num_bytes in ((cut, layers.front_bytes), (cut + 1, layers.back_bytes)):
                own = zip(self._columns(self.unit_of[layer]), num_bytes[cut], strict=True)
                needed = [(column, -self.share * value) for column, value in own]
                rows.add([*needed, (2 * self.size + index, 1.0)])
        for column, count in enumerate(counts):
            rows.add([(column, -1.0), (self.size + column, count)])
        for index, once in enumerate(layers.once_bytes, 2 * self.size + len(self.cuts)):
            for column, value in enumerate(once[first].ravel()):
                if value > 0:
                    rows.add([(self.size + column, -self.share * value), (index, 1.0)])
        return LinearConstraint(rows.matrix(), 0.0, np.inf)

    def _fits(self, first: list[int], num_sizes: int) -> LinearConstraint:
        held, nothing = self.share * self.held[first].ravel(), np.zeros(self.size)
        total = np.concatenate([held, nothing, np.ones(num_sizes)])
        return LinearConstraint(total[None], -np.inf, 1.0)

    def _columns(self, unit: int) -> range:
        return range(unit * self.num_ways, (unit + 1) * self.num_ways)


class _Rows:
    """Rows of a sparse matrix, one after the other."""

    def __init__(self, num_columns: int) -> None:
        self.num_columns, self.num_rows = num_columns, 0
        self._at: list[tuple[int, int, float]] = []

    def add(self, entries: Iterable[tuple[int, float]]) -> None:
        """One row: columns and their numbers."""
        self._at += [(self.num_rows, column, float(value)) for column, value in entries]
        self.num_rows += 1

    def matrix(self) -> csr_matrix:
        rows, columns, values = zip(*self._at, strict=True)
        return csr_matrix((values, (rows, columns)), (self.num_rows, self.num_columns))
