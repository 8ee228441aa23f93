"""Changes of stages by their numbers: each does what its name says."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numba import njit

from heterps_agents.search.stage_changes import (
    OTHER_OPTION,
    SPLIT,
    SWAP,
    change_stages,
    exchange,
    hand_layers,
    num_changes,
    numbered_change,
    relocate,
    reverse,
)
from heterps_envs.arrays import Integers
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.problem_sets.chains import generate

TABLES = generate(20, seed=7)


def of_three_stages(k: KernelTables) -> Integers:
    """Ends, options and replicas; the last row is for one stage more."""
    ends = np.array([k.num_layers // 3, 2 * k.num_layers // 3, k.num_layers, 0])
    kinds = np.array([0, k.num_options - 1, 0, 0])
    stages = np.zeros((k.num_layers + 1, 3), np.int64)
    stages[:4] = np.stack([ends, kinds, [1, 1, 1, 0]], axis=1)
    return stages


@given(st.integers(0, 19), st.integers(0, 2), st.integers(0, 2**30))
def test_a_named_change_does_what_it_says_or_makes_no_sense(
    index: int, row: int, number: int
) -> None:
    k = kernel_tables(TABLES[index])
    before, free = of_three_stages(k), np.zeros(k.num_classes, np.int64)

    def changed(what: int) -> tuple[Integers, int]:
        stages = before.copy()
        at = numbered_change(k, 3, what, row, number)
        assert 0 <= at < num_changes(k, 3)
        return stages, change_stages(k, stages, 3, at, free)

    stages, count = changed(OTHER_OPTION)
    if count:
        assert stages[row, 1] != before[row, 1]
        assert (np.delete(stages, row, 0) == np.delete(before, row, 0)).all()
    stages, count = changed(SWAP)
    if count:
        assert (stages[:, 0] == before[:, 0]).all()
        assert sorted(map(tuple, stages[:3, 1:])) == sorted(map(tuple, before[:3, 1:]))
        assert (stages != before).any()
    stages, count = changed(SPLIT)
    if count:
        assert count == 4
        assert (np.diff(stages[:4, 0]) > 0).all()
        assert set(before[:3, 0]) < set(stages[:4, 0])


@njit
def _ordered(stages: Any, row: int, other: int, layers: int) -> Any:
    """What each way to change the order makes of stages, one after the other; the last may fail."""
    found = np.zeros((4, *stages.shape), np.int64)
    for way in range(4):
        found[way] = stages
    relocate(found[0], row, other)
    reverse(found[1], min(row, other), max(row, other))
    exchange(found[2], min(row, other), max(row, other))
    is_left = hand_layers(found[3], row, other, layers)
    return found, is_left


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=6),
    st.data(),
)
def test_stages_change_their_order_with_their_layers_and_hand_layers_on(
    lengths: list[int], data: st.DataObject
) -> None:
    count = len(lengths)
    places = st.integers(0, count - 1)
    row, other = data.draw(st.tuples(places, places).filter(lambda pair: pair[0] != pair[1]))
    before = [(length, 10 + number, 1 + number) for number, length in enumerate(lengths)]
    stages = np.array([[sum(lengths[: n + 1]), *before[n][1:]] for n in range(count)], np.int64)
    layers = data.draw(st.integers(1, 3))
    found, is_left = _ordered(stages, row, other, layers)
    relocated, reversed_, exchanged, handed = (
        list(zip(np.diff(each[:, 0], prepend=0).tolist(), *each[:, 1:].T.tolist(), strict=True))
        for each in found
    )
    rest = [*before[:row], *before[row + 1 :]]
    assert relocated == [*rest[:other], before[row], *rest[other:]]
    first, last = sorted((row, other))
    turned = before[first : last + 1][::-1]
    assert reversed_ == [*before[:first], *turned, *before[last + 1 :]]
    swapped = list(before)
    swapped[first], swapped[last] = before[last], before[first]
    assert exchanged == swapped
    expected = list(lengths)
    expected[row], expected[other] = expected[row] - layers, expected[other] + layers
    assert [length for length, *_ in handed] == expected
    assert is_left == (lengths[row] > layers)


def test_the_last_changes_are_all_orders_of_stages_which_keep_their_layers() -> None:
    k = kernel_tables(TABLES[0])
    before, free, found = of_three_stages(k), np.zeros(k.num_classes, np.int64), set()
    before[:3, 0], before[:3, 2] = (1, 3, k.num_layers), (1, 2, 3)

    def parts(stages: Integers) -> tuple[tuple[int, ...], ...]:
        lengths = np.diff(stages[:3, 0], prepend=0)
        return tuple(zip(lengths.tolist(), *stages[:3, 1:].T.tolist(), strict=True))

    for index in range(num_changes(k, 3) - 2 * 3 * 3, num_changes(k, 3)):
        stages = before.copy()
        if change_stages(k, stages, 3, index, free):
            found.add(parts(stages))
    assert found == {*permutations(parts(before))} - {parts(before)}
