"""Layers of stages: in proportion, within memory."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.hexiscale.layers import StageTimes, proportional_ends, with_room


def stage(room_bytes: float, held: int = 1, num_layers: int = 8) -> StageTimes:
    """Layers of a second, with a byte of state and one of activations each."""
    before = np.arange(num_layers + 1, dtype=float)
    return StageTimes(before, before, before, room_bytes, held)


def test_equal_layers_are_shared_in_proportion() -> None:
    assert proportional_ends(np.arange(13.0), [1, 2, 3]) == (2, 6, 12)


def test_a_share_of_less_than_half_a_layer_is_none() -> None:
    assert proportional_ends(np.arange(9.0), [4.2, 0.4, 3.4]) == (4, 5, 8)
    assert proportional_ends(np.arange(9.0), [4.2, 0.2, 3.6]) == (4, 4, 8)


def test_uneven_layers_count_by_what_they_take() -> None:
    assert proportional_ends(np.array([0.0, 6.0, 7.0, 8.0, 9.0, 12.0]), [1, 1]) == (1, 5)


@given(st.lists(st.floats(0.01, 10), min_size=1, max_size=6), st.integers(1, 12))
def test_stages_follow_each_other_to_the_last_layer(shares: list[float], num_layers: int) -> None:
    ends = proportional_ends(np.arange(num_layers + 1.0), shares)
    assert len(ends) == len(shares)
    assert ends[-1] == num_layers
    assert list(ends) == sorted(ends)


def test_layers_without_room_go_to_a_neighbour() -> None:
    # The front stage has room for three layers with two micro-batches in flight.
    assert with_room([stage(9.0, held=2), stage(100.0)], [5, 8]) == [3, 8]
    assert with_room([stage(100.0, held=2), stage(6.0)], [2, 8]) == [5, 8]
    assert with_room([stage(9.0, held=2), stage(8.0), stage(100.0)], [5, 6, 8]) == [3, 6, 8]


def test_what_fits_stays_and_what_fits_nowhere_is_nothing() -> None:
    assert with_room([stage(100.0), stage(100.0)], [5, 8]) == [5, 8]
    assert with_room([stage(4.0), stage(4.0)], [4, 8]) is None
    assert with_room([stage(1.0), stage(100.0)], [1, 8]) is None


def test_room_is_counted_in_micro_batches() -> None:
    assert stage(9.0).most_in_flight(0, 3) == 2
    assert stage(2.0).most_in_flight(0, 3) == 0
    empty = stage(9.0)._replace(activation_bytes=np.zeros(9))
    assert empty.most_in_flight(0, 3) == np.inf
