"""Whale's balance: its proportion, what memory moves, and that no whole loads are nearer."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.whale.balance import balanced

# Public peaks of V100 and P100 in TFLOP/s (float32), a batch of 256: worked by hand from the
# paper's rule, which prints no numbers.
POWER, BATCH = (15.7, 9.5), 256


def test_a_batch_is_divided_in_proportion_to_power() -> None:
    assert balanced(BATCH, POWER, lambda index, load: True) == [159, 97]


def test_what_a_device_has_no_room_for_moves_to_the_other() -> None:
    room = (256, 80)
    assert balanced(BATCH, POWER, lambda index, load: load <= room[index]) == [176, 80]


def test_nothing_is_answered_where_all_together_have_no_room() -> None:
    assert balanced(BATCH, POWER, lambda index, load: load <= 100) is None


def distance(loads: tuple[int, ...], power: tuple[float, ...]) -> float:
    pairs = zip(loads, power, strict=True)
    return sum(abs(load / sum(loads) - own / sum(power)) for load, own in pairs)


@given(
    st.integers(1, 12),
    st.tuples(st.floats(0.5, 4), st.floats(0.5, 4), st.floats(0.5, 4)),
    st.tuples(st.integers(0, 12), st.integers(0, 12), st.integers(0, 12)),
)
def test_loads_fit_and_without_limits_none_are_nearer_to_the_proportion(
    total: int, power: tuple[float, ...], room: tuple[int, ...]
) -> None:
    found = balanced(total, power, lambda index, load: load <= room[index])
    assert (found is None) == (sum(room) < total)
    if found is None:
        return
    assert sum(found) == total
    assert all(load <= limit for load, limit in zip(found, room, strict=True))
    if all(limit >= total for limit in room):
        others = product(range(total + 1), repeat=3)
        least = min(distance(each, power) for each in others if sum(each) == total)
        assert distance(tuple(found), power) == pytest.approx(least)
