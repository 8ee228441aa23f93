"""Parts of tensors: whole units for every rank, and together the whole."""

from __future__ import annotations

import pytest
import torch

from heterps_envs.layer_costs.group_slice import GroupSlice, unit_ranges
from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit


@pytest.mark.parametrize(
    ("num_units", "shares", "counts"),
    [
        (4, (0.5, 0.5), [2, 2]),
        (12, (1 / 3, 1 / 3, 1 / 3), [4, 4, 4]),
        (10, (1 / 3, 1 / 3, 1 / 3), [4, 3, 3]),
        (8, (0.5, 0.3, 0.2), [4, 2, 2]),  # 4, 2.4 and 1.6
        (4, (0.97, 0.01, 0.01, 0.01), [1, 1, 1, 1]),
        (5, (0.02, 0.96, 0.02), [1, 3, 1]),
    ],
)
def test_units_are_shared_by_largest_remainder_and_all_get_one(
    num_units: int, shares: tuple[float, ...], counts: list[int]
) -> None:
    ranges = unit_ranges(num_units, shares)
    assert [stop - start for start, stop in ranges] == counts
    assert [start for start, _ in ranges] == [0, *(stop for _, stop in ranges[:-1])]


def test_parts_of_packed_sections_make_up_the_whole_again() -> None:
    split = ParameterSplit(
        role="column", unit="heads", num_units=4, dim=1, sections=((0, 8), (8, 4)), least_units=3
    )
    whole = torch.arange(24.0).reshape(2, 12)
    again, shares = torch.zeros(2, 12), (0.2, 0.5, 0.3)
    for rank in range(3):
        piece = split.slice(whole.shape, GroupSlice(rank, shares))
        assert piece is not None
        part = piece.of(whole)
        assert tuple(part.shape) == piece.local_shape
        piece.put(part, again)
    torch.testing.assert_close(again, whole)
    # The second of three: units 1 and 2 of both sections.
    middle = split.slice(whole.shape, GroupSlice(1, shares))
    assert middle is not None
    assert middle.ranges == ((2, 6), (9, 11))


def test_what_cannot_give_each_rank_a_unit_stays_whole() -> None:
    split = ParameterSplit(
        role="row", unit="columns", num_units=64, dim=0, sections=((0, 64),), least_units=2
    )
    assert split.slice((64, 8), GroupSlice(0, (0.5, 0.5))) is not None
    assert split.slice((64, 8), GroupSlice(0, (0.4, 0.3, 0.3))) is None
