"""How many micro-batches stages should hold: the way to the last stage and back."""

from __future__ import annotations

import pytest

from heterps_envs.closed_form.round_trips import SPARE, round_trip_in_flight

# Two stages of equal work, one second a micro-batch, eight micro-batches.
SHARE, BUSIEST_S = 8, 8.0


@pytest.mark.parametrize(
    ("link_s", "expected"),
    [(0.0, 2), (0.5, 3), (1.0, 4), (1.1, 5)],
)
def test_a_stage_holds_what_it_begins_until_the_first_gradient_is_back(
    link_s: float, expected: int
) -> None:
    trip_s = 1.0 + 1.0 + 2 * link_s
    assert round_trip_in_flight(trip_s, SHARE, BUSIEST_S, False) == expected + SPARE


def test_the_last_stage_holds_none_that_are_only_in_the_way() -> None:
    assert round_trip_in_flight(1.0, SHARE, BUSIEST_S, True) == 1


def test_replicas_begin_fewer_in_the_same_time() -> None:
    assert round_trip_in_flight(8.0, SHARE // 2, BUSIEST_S, False) == 4 + SPARE


def test_work_that_takes_no_time_needs_one() -> None:
    assert round_trip_in_flight(0.0, SHARE, 0.0, True) == 1
