"""Ladders of a search for cheap placements."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.learned.least_price import first_ladder, ladder_around


@given(st.floats(1e-3, 10), st.floats(1, 40), st.floats(0.3, 0.95), st.integers(1, 8))
def test_first_ladders_end_at_the_slowest_step_and_leave_no_gap(
    shortest_s: float, times: float, share: float, most_steps: int
) -> None:
    ladder = first_ladder(shortest_s, shortest_s * times, share, most_steps, 3)
    assert 1 <= len(ladder.steps_s) <= most_steps
    assert ladder.steps_s[0] == pytest.approx(shortest_s * times)
    assert ladder.steps_s[-1] <= shortest_s * ladder.ratio * (1 + 1e-9)
    assert (np.diff(ladder.shares) < 0).all()


def test_ladders_around_a_placement_never_pass_the_slowest_step() -> None:
    ladder = ladder_around(1.0, 0.8, 1.05, 2)
    np.testing.assert_allclose(ladder.steps_s, [0.95, 1.05])
    assert ladder.shares.min() < 0.8 < ladder.shares.max()
