"""Whole shares of a load are next to its exact proportion."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.shares import in_proportion


def test_three_devices_of_which_one_is_two_and_a_half_times_as_fast() -> None:
    # The fixture of Metis' balance of a batch over replicas, worked by hand.
    assert in_proportion(18, (1 / 10, 1 / 10, 1 / 4)) == [4, 4, 10]


def test_what_is_left_goes_to_the_largest_remainders() -> None:
    # 17 x 0.1 / 0.45 = 3.78 twice, and 9.44.
    assert in_proportion(17, (1 / 10, 1 / 10, 1 / 4)) == [4, 4, 9]


@given(st.integers(0, 60), st.lists(st.floats(0.1, 10), min_size=1, max_size=6))
def test_whole_loads_differ_from_the_proportion_by_less_than_one(
    total: int, power: list[float]
) -> None:
    loads = in_proportion(total, power)
    assert sum(loads) == total
    for load, own in zip(loads, power, strict=True):
        assert abs(load - total * own / sum(power)) < 1 + 1e-6
