"""Water-filling: parts are even up to the devices' room."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.cephalo.state import water_filled


def test_what_a_small_device_has_no_room_for_the_others_share() -> None:
    assert water_filled(90.0, [10.0, 100.0, 100.0]) == pytest.approx([10.0, 40.0, 40.0])


def test_where_all_have_room_parts_are_even() -> None:
    assert water_filled(90.0, [31.0, 100.0, 30.0]) == pytest.approx([30.0, 30.0, 30.0])


def test_too_little_room_together_is_said() -> None:
    assert water_filled(90.0, [10.0, 30.0]) is None


@given(st.floats(0, 100), st.lists(st.floats(0, 50), min_size=1, max_size=6))
def test_who_has_room_left_holds_as_much_as_anybody(total: float, room: list[float]) -> None:
    parts = water_filled(total, room)
    assert (parts is None) == (sum(room) < total)
    if parts is None:
        return
    assert sum(parts) == pytest.approx(total, abs=1e-9)
    for part, limit in zip(parts, room, strict=True):
        assert -1e-9 <= part <= limit
        assert part == pytest.approx(limit) or part == pytest.approx(max(parts), abs=1e-9)
