"""Records whose arrays have one order."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, contiguous


class Inner(NamedTuple):
    """A record in a record."""

    values: Floats
    number: int


class Outer(NamedTuple):
    """A record."""

    table: Floats
    pair: tuple[int, int]
    inner: Inner


def test_all_arrays_of_a_record_are_in_one_piece_and_have_their_values() -> None:
    table = np.arange(12.0).reshape(3, 4)
    record = Outer(table.T, (1, 2), Inner(table[:, ::-1], 7))
    found = contiguous(record)
    assert isinstance(found, Outer)
    assert isinstance(found.inner, Inner)
    assert found.table.flags.c_contiguous
    assert found.inner.values.flags.c_contiguous
    np.testing.assert_array_equal(found.table, record.table)
    np.testing.assert_array_equal(found.inner.values, record.inner.values)
    assert (found.pair, found.inner.number) == ((1, 2), 7)
