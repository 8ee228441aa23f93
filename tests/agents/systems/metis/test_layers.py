"""Metis' layer balance: filled by capacity, repaired for memory, moved in the end."""

from __future__ import annotations

import random

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from heterps_agents.systems.metis import layers
from heterps_agents.systems.metis.layers import (
    MOST_MOVES,
    OfStage,
    balanced,
    filled,
    moved,
)

CAPACITIES = st.lists(st.floats(0.05, 1), min_size=1, max_size=6).map(
    lambda each: [own / sum(each) for own in each]
)


def test_equal_layers_go_by_capacity() -> None:
    assert filled([0.1] * 10, [0.5, 0.3, 0.2]) == (5, 8, 10)
    assert filled([0.1] * 10, [0.2, 0.3, 0.5]) == (2, 5, 10)


def test_a_layer_goes_to_the_stage_with_most_of_its_sub_layers() -> None:
    # 0.36 of four layers: the second one has 4 of 7 parts in the first stage with 0.4, 3 with 0.36.
    assert filled([0.25] * 4, [0.4, 0.6]) == (2, 4)
    assert filled([0.25] * 4, [0.36, 0.64]) == (1, 4)


def test_what_is_left_goes_to_the_stage_of_most_capacity() -> None:
    # Of 21 parts each stage holds 10; the one that is left decides who has the second layer.
    assert filled([1 / 3] * 3, [0.49, 0.51]) == (1, 3)
    assert filled([1 / 3] * 3, [0.52, 0.48]) == (2, 3)


@given(st.integers(0, 8), CAPACITIES, st.integers(0, 1000))
def test_every_stage_has_a_layer_and_every_layer_a_stage(
    more: int, shares: list[float], seed: int
) -> None:
    rng = random.Random(seed)
    work = [rng.random() + 0.01 for _ in range(len(shares) + more)]
    total = sum(work)
    stops = filled([own / total for own in work], shares)
    assert stops[-1] == len(work)
    assert all(a < b for a, b in zip((0, *stops), stops, strict=False))


@given(st.integers(20, 60), CAPACITIES)
def test_many_equal_layers_are_within_two_of_their_share(count: int, shares: list[float]) -> None:
    assume(min(shares) * count >= 1.5)
    stops = filled([1 / count] * count, shares)
    for share, start, stop in zip(shares, (0, *stops), stops, strict=False):
        assert abs(stop - start - share * count) < 2


def no_bytes(stage: int, start: int, stop: int) -> float:
    del stage, start, stop
    return 0.0


def seconds_of(speeds: tuple[float, ...]) -> OfStage:
    return lambda stage, start, stop: (stop - start) / speeds[stage]


def test_layers_move_from_the_slowest_stage_a_few_at_a_time() -> None:
    assert moved((1, 12), seconds_of((1.0, 1.0)), no_bytes) == (1 + MOST_MOVES, 12)
    assert moved((6, 12), seconds_of((1.0, 1.0)), no_bytes) == (6, 12)
    # To the neighbour where it helps more.
    assert moved((4, 9, 10), seconds_of((1.0, 1.0, 1.0)), no_bytes) == (4, 8, 10)


def test_a_stage_without_memory_gives_layers_to_those_with_room() -> None:
    rooms = (3, 20)

    def demand(stage: int, start: int, stop: int) -> float:
        return (stop - start) / rooms[stage]

    speeds = (1.0, 1.0)
    found = balanced([0.1] * 10, [0.5, 0.5], seconds_of(speeds), demand)
    assert found.fits
    assert found.stops[0] <= 3
    free = balanced([0.1] * 10, [0.5, 0.5], seconds_of(speeds), no_bytes)
    assert free.stops == (5, 10)


def test_after_three_repairs_it_does_not_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    repairs = []

    def repaired(shares: list[float], demand: tuple[float, ...]) -> list[float]:
        repairs.append(demand)
        return shares

    monkeypatch.setattr(layers, "_repaired", repaired)
    found = balanced([0.25] * 4, [0.5, 0.5], seconds_of((1.0, 1.0)), lambda *_: 2.0)
    assert not found.fits
    assert repairs == [(2.0, 2.0)] * 3
