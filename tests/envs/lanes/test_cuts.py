"""Cuts of lanes beside all other cuts."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_envs.arrays import Floats
from heterps_envs.lanes.arrays import LaneTables
from heterps_envs.lanes.cuts import HALVINGS, cut_evenly, even_cut
from heterps_envs.node_links import NodeLinks
from tests.uneven_problems import uneven_problem

NUM_LAYERS, NUM_COLUMNS = 9, 4
LINKS: NodeLinks = uneven_problem().links.by_node


def tables(layer_s: Floats) -> LaneTables:
    """Of columns with these seconds for each layer, (C, L), a third of them forwards."""
    nothing, room = np.zeros((len(layer_s), NUM_LAYERS + 1)), np.ones(len(layer_s))
    sums = np.pad(np.cumsum(layer_s, axis=1), ((0, 0), (1, 0)))
    return LaneTables(
        sums / 3, sums * 2 / 3, nothing, nothing, nothing, nothing, nothing, room,
        np.zeros(NUM_LAYERS), LINKS, False, True,
    )  # fmt: skip


def drawn(seed: int, parts: int) -> Floats:
    return np.random.default_rng(seed).uniform(0.1, 1.0, (parts, NUM_LAYERS))


@given(st.integers(0, 10_000), st.integers(0, 6))
def test_no_cut_between_two_devices_is_more_even(seed: int, first: int) -> None:
    layer_s = drawn(seed, 2)

    def slower(cut: int) -> float:
        return float(max(layer_s[0, first:cut].sum(), layer_s[1, cut:8].sum()))

    cut = even_cut(tables(layer_s), 0, 1, first, 8)
    assert slower(cut) == pytest.approx(min(map(slower, range(first + 1, 8))))


@given(st.integers(0, 10_000), st.integers(2, NUM_COLUMNS), st.integers(1, 3))
def test_parts_are_as_long_as_a_time_lets_them_and_the_time_is_halved_down_to_that(
    seed: int, parts: int, replicas: int
) -> None:
    layer_s, turns = drawn(seed, parts), np.ones(parts, np.int64)
    turns[-1] = replicas
    edges = [1, *range(2, parts + 1), NUM_LAYERS]
    found = np.array(edges)
    cut_evenly(tables(layer_s), np.arange(parts), turns, found, np.empty_like(found))

    def taken_s(part: int, first: int, stop: int) -> float:
        return float(layer_s[part, first:stop].sum()) / int(turns[part])

    def longest(seconds: float) -> list[int]:
        """Cuts as late as they can be, and so that each part behind has a layer."""
        cuts = [1]
        for part in range(parts):
            most = NUM_LAYERS - (parts - part - 1)
            later = [cut for cut in range(cuts[-1], most + 1)
                     if taken_s(part, cuts[-1], cut) <= seconds]  # fmt: skip
            cuts.append(later[-1])
        return cuts

    low, high = 0.0, max(taken_s(i, *edges[i : i + 2]) for i in range(parts))
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        cuts = longest(middle)
        if cuts[-1] == NUM_LAYERS and all(a < b for a, b in pairwise(cuts)):
            high, edges = middle, cuts
        else:
            low = middle
    assert found.tolist() == edges
