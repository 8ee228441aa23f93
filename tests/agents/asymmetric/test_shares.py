"""Shares of micro-batches: none is better, by brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from heterps_agents.asymmetric.shares import by_rates, least_longest


def longest(first_s: list[float], each_s: list[float], shares: tuple[int, ...]) -> float:
    return max(a + m * b for a, b, m in zip(first_s, each_s, shares, strict=True))


@pytest.mark.parametrize("seed", range(30))
def test_no_other_share_ends_earlier(seed: int) -> None:
    rng = np.random.default_rng(seed)
    size, total = int(rng.integers(1, 5)), int(rng.integers(4, 10))
    first_s = rng.uniform(0, 3, size).tolist()
    each_s = rng.uniform(0.1, 2, size).tolist()
    best = min(
        longest(first_s, each_s, shares)
        for shares in product(range(1, total + 1), repeat=size)
        if sum(shares) == total
    )
    by_lines = by_rates(first_s, each_s, total)
    steps = [
        np.array([a + m * b for m in range(total + 1)])
        for a, b in zip(first_s, each_s, strict=True)
    ]
    exactly = least_longest(steps, total)
    for shares in (by_lines, exactly):
        assert shares is not None
        assert sum(shares) == total
        assert min(shares) >= 1
        assert longest(first_s, each_s, shares) == pytest.approx(best, abs=1e-12)


def test_shares_follow_speeds_where_pipelines_fill_at_once() -> None:
    assert by_rates([0.0, 0.0, 0.0], [1.0, 2.0, 4.0], 14) == (8, 4, 2)


def test_a_pipeline_that_fills_late_has_one_all_the_same() -> None:
    assert by_rates([0.0, 100.0], [1.0, 1.0], 10) == (9, 1)


def test_more_pipelines_than_micro_batches_have_no_share() -> None:
    assert by_rates([0.0] * 3, [1.0] * 3, 2) is None
    assert least_longest([np.zeros(3)] * 3, 2) is None


def test_room_for_few_micro_batches_is_kept() -> None:
    fast = np.array([0.0, 1.0, 2.0, np.inf, np.inf, np.inf])
    slow = np.array([0.0, 5.0, 10.0, 15.0, 20.0, 25.0])
    assert least_longest([fast, slow], 5) == (2, 3)
    assert least_longest([fast, fast], 5) is None


@pytest.mark.parametrize(
    ("first_s", "each_s"), [([0.0, 0.0], [0.0, 0.0]), ([1.0, 1.0], [0.0, 1.0]), ([3.0], [0.0])]
)
def test_lanes_that_take_no_time_share_all_micro_batches(
    first_s: list[float], each_s: list[float]
) -> None:
    shares = by_rates(first_s, each_s, 12)
    assert shares is not None
    assert sum(shares) == 12
    assert min(shares) >= 1
