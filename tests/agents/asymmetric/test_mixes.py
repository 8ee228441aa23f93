"""The knapsack of pipelines: the most micro-batches in a time, by brute force."""

from __future__ import annotations

from itertools import combinations_with_replacement

import numpy as np
import pytest

from heterps_agents.asymmetric import mixes
from heterps_agents.asymmetric.counts import counts_up_to
from heterps_agents.asymmetric.mixes import good_mixes
from heterps_agents.asymmetric.pipes import Pipes

DEVICES = np.array([2, 3])


def drawn_pipes(seed: int) -> Pipes:
    """One pipeline for each multiset of up to three devices, each faster with more of them."""
    rng = np.random.default_rng(seed)
    counts = counts_up_to([2, 3], 3)
    vectors = np.arange(1, len(counts.vectors))
    speed = (counts.vectors[1:] * [1.0, 0.6]).sum(axis=1) * rng.uniform(0.7, 1.0, len(vectors))
    return Pipes(
        counts,
        tuple(((1, 0, 1),) for _ in vectors),
        vectors,
        rng.uniform(0.0, 0.3, len(vectors)),
        1 / speed,
        np.full(len(vectors), 100),
    )


def within(pipes: Pipes, mix: tuple[int, ...], seconds: float) -> int:
    done = np.floor((seconds - pipes.first_s) / pipes.each_s + 1e-9).clip(0)
    return int(sum(done[index] for index in mix))


def fits(pipes: Pipes, mix: tuple[int, ...]) -> bool:
    used = sum(pipes.counts.vectors[pipes.vector[index]] for index in mix)
    return bool((used <= DEVICES).all())


def least_s(pipes: Pipes, total: int) -> float:
    """The least time in which some mix of two or more gets through."""
    every = [
        mix
        for size in range(2, 6)
        for mix in combinations_with_replacement(range(len(pipes.stages)), size)
        if fits(pipes, mix)
    ]
    low, high = 0.0, 100.0
    for _ in range(40):
        middle = (low + high) / 2
        enough = any(within(pipes, mix, middle) >= total for mix in every)
        low, high = (low, middle) if enough else (middle, high)
    return high


@pytest.mark.parametrize("seed", range(6))
def test_no_mix_of_two_or_more_gets_through_in_less(seed: int) -> None:
    pipes = drawn_pipes(seed)
    found = good_mixes(pipes, DEVICES, 20, 100.0)
    assert found is not None
    best_s = least_s(pipes, 20)
    assert best_s <= found.least_s <= best_s * (1 + 2 * mixes.PRECISION)
    assert all(len(mix) > 1 and fits(pipes, mix) for mix in found.found)
    assert within(pipes, found.found[0], found.least_s * 1.02) >= 20 or any(
        within(pipes, mix, found.least_s * 1.02) >= 20 for mix in found.found
    )


def test_nothing_is_found_within_a_time_that_is_too_short() -> None:
    pipes = drawn_pipes(0)
    assert good_mixes(pipes, DEVICES, 20, 0.9 * least_s(pipes, 20)) is None


@pytest.mark.parametrize("seed", range(4))
def test_prices_come_near_the_knapsack_where_that_has_too_many_states(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipes = drawn_pipes(seed)
    monkeypatch.setattr(mixes, "MOST_STATES", 1)
    found = good_mixes(pipes, DEVICES, 20, 100.0)
    assert found is not None
    assert all(len(mix) > 1 and fits(pipes, mix) for mix in found.found)
    assert found.least_s <= 1.15 * least_s(pipes, 20)
