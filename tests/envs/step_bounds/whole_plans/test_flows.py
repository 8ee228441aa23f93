"""Micro-batches pass where stages follow each other, not wherever each layer has room."""

from __future__ import annotations

from heterps_envs.step_bounds.whole_plans.flows import all_pass
from heterps_envs.step_bounds.whole_plans.staged import Staged
from tests.envs.small_problems import chain_problem
from tests.envs.step_bounds.whole_plans.staged_plans import Spans, staged_of


def with_room(spans: Spans, most: list[float]) -> tuple[Staged, int]:
    problem = chain_problem([1.0] * 10, [1.0] * 10, num_micro_batches=10, counts=(len(spans),))
    _, staged = staged_of(problem, spans)
    staged.most[: len(most)] = most
    return staged, len(most)


def test_each_layer_has_room_for_ten_and_seven_find_a_way() -> None:
    spans = [(0, 0, 4), (0, 0, 6), (0, 4, 10), (0, 6, 10)]
    staged, count = with_room(spans, [5.0, 5.0, 8.0, 2.0])
    assert all_pass(staged, count, 7.0)
    assert not all_pass(staged, count, 8.0)


def test_a_way_that_was_taken_first_is_given_back() -> None:
    """The first way found takes the middle stage, which leaves one micro-batch without a way."""
    spans = [(0, 0, 3), (0, 0, 6), (0, 3, 6), (0, 3, 10), (0, 6, 10)]
    staged, count = with_room(spans, [1.0, 1.0, 1.0, 1.0, 1.0])
    assert all_pass(staged, count, 2.0)
    assert not all_pass(staged, count, 3.0)
