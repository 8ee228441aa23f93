"""The exact pieces of DT-FM's cost: equal to trying everything."""

from __future__ import annotations

from itertools import pairwise, permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.dtfm.kernels import (
    bottleneck_matching,
    group_sums,
    improved_tour,
    open_tour,
    path_length,
    spanning_tree,
)
from tests.agents.systems.dtfm.networks import matched_s, random_traffic

SEEDS = st.integers(0, 10_000)


@given(SEEDS, st.integers(1, 5))
def test_no_matching_has_a_smaller_largest_cost(seed: int, size: int) -> None:
    # Few different numbers, so that there are ties.
    cost = np.random.default_rng(seed).integers(0, 7, (size, size)).astype(float)
    largest, row_of = bottleneck_matching(cost)
    assert sorted(row_of) == list(range(size))
    assert largest == max(cost[row_of[column], column] for column in range(size))
    assert largest == matched_s(cost)


def test_the_largest_cost_counts_and_not_their_sum() -> None:
    cost = np.array([[1.0, 6.0], [6.0, 10.0]])
    largest, row_of = bottleneck_matching(cost)
    assert largest == 6.0
    assert row_of.tolist() == [1, 0]


@pytest.mark.slow
@given(SEEDS, st.integers(1, 6))
def test_no_order_of_groups_is_shorter(seed: int, size: int) -> None:
    hop_s = random_traffic(seed, size).activation_s
    shortest, order = open_tour(hop_s)
    orders = permutations(range(size))
    by_trying = min(sum(hop_s[pair] for pair in pairwise(each)) for each in orders)
    assert shortest == pytest.approx(by_trying)
    assert sorted(order) == list(range(size))
    assert path_length(hop_s, order) == pytest.approx(shortest)


@pytest.mark.slow
@given(SEEDS, st.integers(2, 9))
def test_a_tour_mended_by_reversals_lies_between_the_tree_the_best_and_where_it_began(
    seed: int, size: int
) -> None:
    hop_s = random_traffic(seed, size).activation_s
    start = np.random.default_rng(seed).permutation(size)
    length, order = improved_tour(hop_s, start)
    assert sorted(order) == list(range(size))
    assert length == pytest.approx(path_length(hop_s, order))
    best, _ = open_tour(hop_s)
    assert spanning_tree(hop_s) - 1e-9 <= best <= length + 1e-9
    assert length <= path_length(hop_s, start) + 1e-9


def test_the_member_with_the_slowest_links_decides_for_its_group() -> None:
    gradient_s = np.array([[0.0, 1.0, 4.0], [1.0, 0.0, 2.0], [4.0, 2.0, 0.0]])
    slowest_s, mean_s = group_sums(gradient_s, np.array([0, 1, 2]))
    assert slowest_s == 6.0
    assert mean_s == pytest.approx(14 / 3)
    assert group_sums(gradient_s, np.array([0, 1])) == (1.0, 1.0)
    assert group_sums(gradient_s, np.array([2])) == (0.0, 0.0)
