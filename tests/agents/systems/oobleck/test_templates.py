"""Fixtures of Oobleck (SOSP 2023): template cost, sets of templates, batches, least nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.oobleck.templates import (
    best_template,
    iteration_s,
    least_nodes,
    share_micro_batches,
    template_sets,
    template_sizes,
)
from heterps_configs.errors import InfeasibleError
from tests.agents.published_costs import oobleck_s, splits


def proportional(seconds: float) -> Callable[[int], float]:
    return lambda number: seconds * number


@pytest.mark.parametrize(
    ("weights", "num_stages", "seconds"),
    [([2, 3, 4], 2, 43), ([1, 2, 3, 4, 5, 6], 3, 117), ([1] * 24 + [6], 4, 148)],
)
def test_the_best_template_costs_what_oobleck_s_planner_found(
    weights: list[float], num_stages: int, seconds: float
) -> None:
    """Section 4.1.2, run with the code of 2023."""
    assert best_template(weights, num_stages).iteration_s == seconds


def test_the_splits_are_those_of_the_published_cases() -> None:
    assert best_template([2, 3, 4], 2).sizes == (2, 1)
    assert best_template([1, 2, 3, 4, 5, 6], 3).sizes == (3, 2, 1)


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.data())
def test_no_split_is_better_than_the_template(weights: list[int], data: st.DataObject) -> None:
    num_stages = data.draw(st.integers(1, len(weights)))
    found = best_template(weights, num_stages)
    best = min(oobleck_s(weights, split) for split in splits(len(weights), num_stages))
    assert found.iteration_s == best == iteration_s(weights, found.sizes)
    assert sum(found.sizes) == len(weights)
    assert len(found.sizes) == num_stages


@pytest.mark.parametrize(
    ("nodes", "sizes", "ways"),
    [
        (13, range(2, 8), 17),
        (8, range(2, 5), 4),
        (14, range(2, 6), 13),
        (30, range(2, 9), 358),
        (16, range(2, 9), 40),
        (13, range(3, 8), 6),
    ],
)
def test_sets_of_templates_are_as_many_as_oobleck_enumerates(
    nodes: int, sizes: range, ways: int
) -> None:
    """Section 4.2.1; tests of the code of 2023."""
    found = list(template_sets(nodes, sizes))
    assert len(found) == len(set(found)) == ways
    assert all(sum(chosen) == nodes for chosen in found)


@pytest.mark.parametrize(
    ("seconds", "num_micro_batches", "slowest"),
    [([4, 3], 70, 120), ([6, 4, 4, 3], 64, 66)],
)
def test_the_batch_is_shared_so_that_the_slowest_pipeline_ends_first(
    seconds: list[float], num_micro_batches: int, slowest: float
) -> None:
    """Section 4.2.2, T = [4, 3] and T = [6, 4, 3] with x = [1, 2, 1]: the objective, not shares."""
    shares = share_micro_batches([proportional(each) for each in seconds], num_micro_batches)
    assert sum(shares) == num_micro_batches
    assert max(t * n for t, n in zip(seconds, shares, strict=True)) == slowest


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=3),
    st.lists(st.integers(1, 8), min_size=3, max_size=3),
    st.integers(1, 12),
)
def test_no_other_shares_end_earlier(
    seconds: list[int], most: list[int], num_micro_batches: int
) -> None:
    limits = most[: len(seconds)]
    allowed = [
        max(t * n for t, n in zip(seconds, shares, strict=True))
        for shares in product(*(range(1, limit + 1) for limit in limits))
        if sum(shares) == num_micro_batches
    ]
    times = [proportional(each) for each in seconds]
    if not allowed:
        with pytest.raises(InfeasibleError):
            share_micro_batches(times, num_micro_batches, limits)
        return
    shares = share_micro_batches(times, num_micro_batches, limits)
    assert max(t * n for t, n in zip(seconds, shares, strict=True)) == min(allowed)
    assert all(share <= limit for share, limit in zip(shares, limits, strict=True))


@pytest.mark.parametrize(
    ("devices_per_node", "device_bytes", "num_layers", "least"),
    [
        (1, 1024 * 32 * 6, 64, 2),
        (1, 1024 * 16 * 6, 64, 4),
        (1, 1024 * 16 * 6, 128, 8),
        (4, 1024 * 16 * 6, 128, 2),
    ],
)
def test_least_nodes_hold_six_times_the_parameters(
    devices_per_node: int, device_bytes: int, num_layers: int, least: int
) -> None:
    """The cases of the tests of 2023: layers of 1 KiB."""
    assert least_nodes([1024] * num_layers, devices_per_node * device_bytes) == least


def test_four_nodes_cannot_run_a_model_that_needs_eight() -> None:
    with pytest.raises(InfeasibleError, match="4 nodes cannot tolerate 0 losses"):
        template_sizes(4, 8, tolerated=0)


@pytest.mark.parametrize(
    ("nodes", "least", "tolerated"), [(13, 2, 3), (16, 4, 1), (20, 5, 2), (8, 3, 1), (9, 4, 1)]
)
def test_every_number_of_nodes_from_the_least_on_has_a_set_of_templates(
    nodes: int, least: int, tolerated: int
) -> None:
    """With 9 nodes the sizes of the paper, 4 and 5, leave 6 and 7 uncovered; all sizes do not."""
    sizes: Sequence[int] = template_sizes(nodes, least, tolerated)
    assert all(any(template_sets(left, sizes)) for left in range(least, nodes + 1))
    if (nodes, least) == (9, 4):
        paper = range(least, nodes - tolerated * least + 1)
        assert [n for n in range(4, 10) if not any(template_sets(n, paper))] == [6, 7]
