"""Placements with more of a class are whole placements, and take more of that class alone."""

from __future__ import annotations

import pytest

from heterps_agents.finishing.more_of_class import placements_with_more, stage_ranges, usage
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import PlacedStage, decode, encode
from tests.envs.small_problems import random_tables

PLACEMENTS = {
    "one stage": (PlacedStage(0, 5, 0, replicas=2),),
    "two classes": (PlacedStage(0, 2, 0), PlacedStage(3, 5, 1, replicas=2)),
    "a cut within a class": (PlacedStage(0, 1, 1), PlacedStage(2, 5, 1), ),
}  # fmt: skip


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("device_class", [0, 1])
def test_each_is_a_placement_with_more_of_one_class_and_no_more_of_others(
    name: str, device_class: int
) -> None:
    kernel = kernel_tables(random_tables(0, 6, (4, 4)))
    code = encode(PLACEMENTS[name])
    before = usage(code, kernel)
    found = list(placements_with_more(code, kernel, device_class))
    assert found
    for each in found:
        placement = decode(each)
        assert [stage.first_layer for stage in placement] == [
            first for first, _ in stage_ranges(each)
        ]
        assert (encode(placement) == each).all()
        after = usage(each, kernel)
        assert before[device_class] < after[device_class] <= 4
        assert after[1 - device_class] <= before[1 - device_class]
    assert len({each.tobytes() for each in found}) > 3


def test_a_class_that_is_all_in_use_has_no_more() -> None:
    kernel = kernel_tables(random_tables(0, 6, (2, 4)))
    code = encode((PlacedStage(0, 5, 0, replicas=2),))
    assert list(placements_with_more(code, kernel, 0)) == []
