"""Both integer programmes of Malleus, against all splits that there are."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.malleus.shares import split_least
from heterps_configs.errors import InfeasibleError


@pytest.mark.parametrize(
    ("slowdowns", "total", "slowest"),
    [
        ((2, 1, 1, 1), 32, 10),
        ((2, 1.5, 1.2, 1), 32, 11),
        ((10, 8), 64, 288),
        ((11, 8), 64, 297),
    ],
)
def test_both_programmes_reach_the_published_objectives(
    slowdowns: tuple[float, ...], total: int, slowest: float
) -> None:
    shares = split_least(slowdowns, total)
    assert sum(shares) == total
    assert max(y * n for y, n in zip(slowdowns, shares, strict=True)) == pytest.approx(slowest)


def test_micro_batches_are_the_published_ones() -> None:
    assert split_least((10, 8), 64) == (28, 36)
    assert split_least((11, 8), 64) == (27, 37)


@given(
    st.lists(st.sampled_from([1, 1.2, 1.5, 2, 5]), min_size=1, max_size=3),
    st.lists(st.integers(0, 6), min_size=3, max_size=3),
    st.lists(st.integers(0, 2), min_size=3, max_size=3),
    st.integers(0, 12),
)
def test_no_other_split_within_the_limits_is_faster(
    slowdowns: list[float], most: list[int], least: list[int], total: int
) -> None:
    high, low = most[: len(slowdowns)], least[: len(slowdowns)]
    allowed = [
        max(y * n for y, n in zip(slowdowns, shares, strict=True))
        for shares in product(*(range(a, b + 1) for a, b in zip(low, high, strict=True)))
        if sum(shares) == total
    ]
    if not allowed:
        with pytest.raises(InfeasibleError):
            split_least(slowdowns, total, high, low)
        return
    shares = split_least(slowdowns, total, high, low)
    assert sum(shares) == total
    assert all(a <= n <= b for a, n, b in zip(low, shares, high, strict=True))
    assert max(y * n for y, n in zip(slowdowns, shares, strict=True)) == pytest.approx(min(allowed))
