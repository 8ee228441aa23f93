"""Metis' device groups: powers of two, orders of types and sizes, and how many are looked at."""

from __future__ import annotations

from itertools import combinations_with_replacement, pairwise, permutations

import pytest

from heterps_agents.systems.metis.layouts import (
    LONGEST,
    MOST_LAYOUTS,
    MOST_ORDERS,
    arrangements,
    has_layouts,
    layouts,
    powers_of_two,
    type_orders,
)


@pytest.mark.parametrize(("total", "number"), [(16, 3), (7, 3), (12, 5), (5, 1), (9, 9)])
def test_sizes_are_all_multisets_of_powers_of_two(total: int, number: int) -> None:
    powers = (1, 2, 4, 8, 16)
    every = combinations_with_replacement(powers, number)
    assert list(powers_of_two(total, number, 0)) == [own for own in every if sum(own) == total]
    least = [own for own in powers_of_two(total, number, 2) if own[0] < 2]
    assert least == []


def test_few_groups_come_in_all_orders() -> None:
    assert sorted(arrangements((2, 2, 4, 8))) == sorted(set(permutations((2, 2, 4, 8))))


def test_many_groups_move_in_blocks() -> None:
    found = arrangements((1,) * 8 + (2,) * 4)
    assert all(sorted(own) == [1] * 8 + [2] * 4 for own in found)
    changes = [sum(a != b for a, b in pairwise(own)) for own in found]
    assert max(changes) < LONGEST
    assert 2 <= len(found) <= 20


def test_the_shipped_shape_of_the_published_log_is_among_the_layouts() -> None:
    """Sixteen devices and ten layers: the planner's log has two groups of eight."""
    assert (8, 16) in {layout.stops for layout in layouts(16, 10, 2, seed=0)}


def test_layouts_use_all_devices_and_are_capped_alike_for_every_number_of_stages() -> None:
    found = layouts(512, 34, 2, seed=0)
    assert len(found) <= MOST_LAYOUTS
    assert all(layout.stops[-1] == 512 for layout in found)
    assert {len(layout.stops) for layout in found} >= {1, 2, 4, 8, 16, 32}
    assert found == layouts(512, 34, 2, seed=0)


def test_few_layers_may_leave_no_layout() -> None:
    assert not has_layouts(7, 3)
    assert layouts(7, 3, 1, seed=0) == []
    assert has_layouts(7, 4)


def test_orders_of_types_keep_each_type_together() -> None:
    assert type_orders([["a", "b"], ["c"]], 0) == [("a", "b", "c"), ("c", "a", "b")]
    many = type_orders([[str(index)] for index in range(8)], 0)
    assert len(many) == MOST_ORDERS
    assert all(sorted(order) == [str(index) for index in range(8)] for order in many)
