"""How far two loss curves are apart."""

from __future__ import annotations

import math

import pytest

from heterps_runtime.run.verify import max_difference


def test_largest_difference_is_reported() -> None:
    assert max_difference([1.0, 2.0, 3.0], [1.0, 2.5, 2.9]) == 0.5


def test_a_loss_that_is_no_number_is_infinitely_wrong() -> None:
    assert max_difference([1.0, math.nan], [1.0, 2.0]) == math.inf


def test_curves_of_unequal_length_are_a_defect() -> None:
    with pytest.raises(ValueError, match="longer"):
        max_difference([1.0], [1.0, 2.0])
