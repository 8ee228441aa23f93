"""A value that holds until the next one is a step curve, however TensorBoard smooths it."""

from __future__ import annotations

from bisect import bisect_right

import pytest

from heterps_agents.boards.curves import SETTLING_SHARE, held

CHANGES = [(100, 5.0), (1_100, 2.0), (5_000, 1.0)]


def value_at(points: list[tuple[int, float]], step: int) -> float:
    return points[bisect_right([point[0] for point in points], step) - 1][1]


def test_steps_rise_and_each_point_has_the_value_that_holds_there() -> None:
    points = list(held(CHANGES, 9_000))
    steps = [step for step, _ in points]
    assert steps == sorted(set(steps))
    assert (steps[0], steps[-1]) == (100, 9_000)
    for step, value in points:
        assert value == value_at(CHANGES, step)
    # TensorBoard joins points by straight lines: nothing lies between the two of a fall.
    assert {1_099, 1_100, 4_999, 5_000} <= set(steps)


def test_smoothing_leaves_less_than_a_hundredth_of_a_change_soon_after_it() -> None:
    smoothed, share, before = 0.0, 0.0, {}
    for step, value in held(CHANGES, 9_000):
        smoothed, share = 0.6 * smoothed + 0.4 * value, 0.6 * share + 0.4
        before[step] = smoothed / share
    for (begin, value), end in zip(CHANGES, (1_100, 5_000, 9_001), strict=True):
        settled = [
            now
            for step, now in before.items()
            if begin + SETTLING_SHARE * (end - begin) <= step < end
        ]
        assert settled
        assert settled == [pytest.approx(value, rel=0.02)] * len(settled)


def test_changes_closer_than_steps_can_settle_stay_as_they_are() -> None:
    assert list(held([(0, 3.0), (1, 2.0), (1, 1.0)], 2)) == [(0, 3.0), (1, 1.0), (2, 1.0)]
    assert list(held([], 5)) == []
    assert list(held([(4, 1.0)], 0)) == [(4, 1.0)]
