"""Two methods on the same problems: their ratio, its interval, and who won."""

import math

import pytest

from benchmarks.agent.worth.paired import paired


def test_the_gain_is_the_geometric_mean_of_the_ratios() -> None:
    found = paired([1.0, 2.0, 4.0], [2.0, 2.0, 2.0])
    assert found.gain == pytest.approx(0.0)
    assert (found.wins, found.losses, found.problems) == (1, 1, 3)
    assert found.low < 0 < found.high


def test_a_constant_ratio_has_no_width() -> None:
    found = paired([1.0, 3.0], [1.1, 3.3])
    assert found.low == pytest.approx(0.1)
    assert found.high == pytest.approx(0.1)


def test_who_alone_found_something_has_won_and_stays_out_of_the_mean() -> None:
    found = paired([1.0, 1.0, None], [1.0, None, 5.0])
    assert (found.wins, found.losses, found.problems) == (1, 1, 1)
    assert math.isnan(paired([None], [1.0]).gain)
