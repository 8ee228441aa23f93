"""Shares of devices: by speed, by the linear programme, and rounded to whole units."""

from __future__ import annotations

import numpy as np
import pytest

from heterps_agents.systems.hap.chain import Chain, Instruction, Term, seconds_of
from heterps_agents.systems.hap.ratios import best_shares, even_shares, shares_by_speed
from heterps_agents.systems.hap.rounding import at_least_one, rounded_shares
from heterps_configs.errors import InfeasibleError

# Measured flop/s of two kinds of GPUs: `worker.py` of HAP's code (commits of 2023-05-22, and of
# 2023-06-29 to 2023-07-01).
TWO_AND_TWO = [5712013967207.0] * 2 + [3009904927648.0] * 2
TWO_AND_SIX = [3858755112937.0] * 2 + [2149250936815.0] * 6


def test_shares_by_speed_are_those_that_the_published_code_prints() -> None:
    """Source: a comment in its `worker.py`, commit 11f732d."""
    found = shares_by_speed(TWO_AND_TWO).tolist()
    assert found == [0.32745167869976854] * 2 + [0.17254832130023143] * 2


@pytest.mark.parametrize(
    ("units", "expected"),
    [
        (32, (6, 6, 3, 3, 3, 3, 4, 4)),
        (64, (12, 12, 6, 6, 7, 7, 7, 7)),
        (128, (24, 24, 13, 13, 13, 13, 14, 14)),
        (256, (48, 48, 26, 26, 27, 27, 27, 27)),
        (768, (144, 144, 80, 80, 80, 80, 80, 80)),
        (1000, (187, 187, 104, 104, 104, 104, 105, 105)),
        (3072, (575, 575, 320, 320, 320, 320, 321, 321)),
    ],
)
def test_two_and_six_devices_get_the_published_units(units: int, expected: tuple[int, ...]) -> None:
    """Source: `sharding_round` of `hap.rs`, with the speeds of its `worker.py`."""
    assert rounded_shares(shares_by_speed(TWO_AND_SIX).tolist(), units) == expected


@pytest.mark.parametrize(
    ("shares", "units", "expected"),
    [
        ((0.1, 0.2, 0.3, 0.4), 10, (1, 2, 3, 4)),
        ((0.1, 0.2, 0.3, 0.4), 16, (2, 3, 5, 6)),
        ((0.1, 0.2, 0.3, 0.4), 7, (1, 1, 2, 3)),
        ((1 / 3,) * 3, 10, (3, 3, 4)),
        ((1 / 3,) * 3, 11, (3, 4, 4)),
        ((1 / 3,) * 3, 1, (1, 1, 1)),
    ],
)
def test_shares_become_units_and_the_last_of_equals_gets_what_is_left(
    shares: tuple[float, ...], units: int, expected: tuple[int, ...]
) -> None:
    """Source: `sharding_round` of `hap.rs`."""
    assert rounded_shares(shares, units) == expected


def test_twenty_nine_devices_get_the_published_units() -> None:
    """Source: the list of 29 devices in `worker.py`, rounded by `sharding_round`."""
    speeds = [TWO_AND_SIX[0]] * 8 + [TWO_AND_SIX[-1]] * 21
    found = rounded_shares(shares_by_speed(speeds).tolist(), 1856)
    assert found == (94,) * 8 + (52,) * 9 + (53,) * 12


def test_a_share_of_nothing_takes_a_unit_from_whoever_has_most() -> None:
    assert at_least_one((0.9, 0.05, 0.05), 4) == (2, 1, 1)
    assert at_least_one((0.5, 0.5), 1) is None


def product_and_gather(speeds: list[float], gather_s: float) -> tuple[Chain, Instruction]:
    """One product of 1 second at speed 1, and a padded gather of `gather_s * n * largest share`."""
    n = len(speeds)
    nothing = (0.0,) * n
    terms = (
        Term(nothing, tuple(1 / speed for speed in speeds)),
        Term(nothing, (gather_s * n,) * n),
    )
    only = Instruction("split columns", 0, "whole", "features", 0, terms)
    return Chain(tuple(speeds), ((only,),), ((), ()), ((), ())), only


@pytest.mark.parametrize(("speeds", "flip"), [([2.0, 1.0], 0.5), ([2.0] * 2 + [1.0] * 6, 1 / 24)])
def test_the_best_shares_jump_from_speed_to_even_where_the_gather_is_dear(
    speeds: list[float], flip: float
) -> None:
    """By speed while `c n < F n1 / (n2 f2)`, else even: proof for HAP's programme, equation (3)."""
    by_speed, even = shares_by_speed(speeds), even_shares(len(speeds))
    for factor, expected in ((0.999, by_speed), (1.001, even)):
        chain, only = product_and_gather(speeds, factor * flip)
        assert best_shares([only], chain)[0] == pytest.approx(expected)
    chain, only = product_and_gather(speeds, flip)
    least = seconds_of([only], best_shares([only], chain))
    assert least == pytest.approx(seconds_of([only], by_speed[None]))
    assert least == pytest.approx(seconds_of([only], even[None]))


@pytest.mark.parametrize(
    ("speeds", "gather_s", "shares", "seconds"),
    [
        ([2.0, 1.0], 0.5, None, 1.0),
        ([2.0, 1.0], 0.51, [0.5, 0.5], 1.01),
        ([2.0] * 2 + [1.0] * 6, 0.04, [0.2] * 2 + [0.1] * 6, 0.164),
        ([2.0] * 2 + [1.0] * 6, 0.05, [0.125] * 8, 0.175),
    ],
)
def test_seconds_around_the_jump(
    speeds: list[float], gather_s: float, shares: list[float] | None, seconds: float
) -> None:
    """Source: HAP's linear programme in HiGHS, and the proof. (At 0.5 both shares are as good.)"""
    chain, only = product_and_gather(speeds, gather_s)
    found = best_shares([only], chain)
    assert seconds_of([only], found) == pytest.approx(seconds)
    if shares is not None:
        assert found[0] == pytest.approx(shares)


def test_what_is_not_shared_counts_in_the_programme_and_memory_limits_shares() -> None:
    fixed = Instruction(
        "split rows", 0, "whole", "whole", 0, (Term((0.0, 3.0), (4.0, 4.0)),),
        memory=Term((1.0, 1.0), (10.0, 10.0)),
    )  # fmt: skip
    chain = Chain((1.0, 1.0), ((fixed,),), ((), ()), ((), ()))
    assert best_shares([fixed], chain)[0] == pytest.approx([0.875, 0.125])
    tight = chain._replace(memory_bytes=(7.0, 100.0))
    assert best_shares([fixed], tight)[0] == pytest.approx([0.6, 0.4])
    for limits in ((5.0, 6.0), (0.0, 100.0)):
        with pytest.raises(InfeasibleError, match="memory"):
            best_shares([fixed], chain._replace(memory_bytes=limits))


def test_seconds_beyond_one_are_no_limit() -> None:
    """The published programme bounds every instruction by a second."""
    chain, only = product_and_gather([0.02, 0.01], 0.0)
    assert seconds_of([only], best_shares([only], chain)) == pytest.approx(100 / 3)
    assert np.isclose(best_shares([only], chain).sum(), 1)
