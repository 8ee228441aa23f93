"""Fixtures of Malleus (arXiv 2410.13333): 16 GPUs, 2 pipelines of 4 stages, 32 layers."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.malleus.straggler import (
    StageMemory,
    StragglerPlan,
    UniformPlan,
    proportional_bound,
    replan_stragglers,
    split_least,
    uniform_seconds,
)
from heterps_configs.errors import InfeasibleError

# Of the planner's own example, in MiB.
MEMORY = StageMemory((2934, 2483, 2024, 1567), embedding=1200, extra=4500, limit=40536)
NODES = [[f"gpu{8 * node + index}" for index in range(8)] for node in range(2)]
ONE = {"gpu15": 5.0}
FIVE = {"gpu0": 1.5, "gpu5": 1.1, "gpu11": 0.8, "gpu12": 1.2, "gpu15": 5.0}


def plan(ratios: dict[str, float], num_layers: int = 32) -> StragglerPlan:
    return replan_stragglers(
        ratios, NODES, UniformPlan(2, 4, 2, num_layers, 64), MEMORY,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("slowdowns", "total", "slowest"),
    [
        ((2, 1, 1, 1), 32, 10),
        ((2, 1.5, 1.2, 1), 32, 11),
        ((10, 8), 64, 288),
        ((11, 8), 64, 297),
    ],
)
def test_both_programmes_reach_the_published_objectives(
    slowdowns: tuple[float, ...], total: int, slowest: float
) -> None:
    shares = split_least(slowdowns, total)
    assert sum(shares) == total
    assert max(y * n for y, n in zip(slowdowns, shares, strict=True)) == pytest.approx(slowest)


def test_micro_batches_are_the_published_ones() -> None:
    assert split_least((10, 8), 64) == (28, 36)
    assert split_least((11, 8), 64) == (27, 37)


@given(
    st.lists(st.sampled_from([1, 1.2, 1.5, 2, 5]), min_size=1, max_size=3),
    st.lists(st.integers(0, 6), min_size=3, max_size=3),
    st.lists(st.integers(0, 2), min_size=3, max_size=3),
    st.integers(0, 12),
)
def test_no_other_split_within_the_limits_is_faster(
    slowdowns: list[float], most: list[int], least: list[int], total: int
) -> None:
    high, low = most[: len(slowdowns)], least[: len(slowdowns)]
    allowed = [
        max(y * n for y, n in zip(slowdowns, shares, strict=True))
        for shares in product(*(range(a, b + 1) for a, b in zip(low, high, strict=True)))
        if sum(shares) == total
    ]
    if not allowed:
        with pytest.raises(InfeasibleError):
            split_least(slowdowns, total, high, low)
        return
    shares = split_least(slowdowns, total, high, low)
    assert sum(shares) == total
    assert all(a <= n <= b for a, n, b in zip(low, shares, high, strict=True))
    assert max(y * n for y, n in zip(slowdowns, shares, strict=True)) == pytest.approx(min(allowed))


@pytest.mark.parametrize(("ratios", "seconds"), [({}, 256), (ONE, 288), (FIVE, 297)])
def test_the_plan_is_as_fast_as_that_of_malleus_planner(
    ratios: dict[str, float], seconds: float
) -> None:
    """Objectives of its example, in units of one layer and micro-batch of a normal group."""
    found = plan(ratios)
    assert found.seconds == pytest.approx(seconds)
    for pipeline in found.pipelines:
        assert sum(pipeline.layers) == 32
    assert sum(pipeline.micro_batches for pipeline in found.pipelines) == 64


def test_a_hopeless_device_is_suspended_and_its_partner_works_alone_in_front() -> None:
    found = plan(ONE)
    assert found.suspended == ("gpu15",)
    slow, normal = found.pipelines
    assert slow.groups[0].devices == ("gpu14",)
    assert (slow.seconds, normal.seconds) == (10, 8)
    assert (slow.micro_batches, normal.micro_batches) == (28, 36)
    assert normal.layers == (8, 8, 8, 8)


def test_the_equal_plan_and_the_proportional_bounds_are_the_published_ones() -> None:
    assert uniform_seconds(ONE, UniformPlan(2, 4, 2, 32, 64)) == 1280
    assert proportional_bound(ONE, 16, 256) == pytest.approx(269.47, abs=0.005)
    assert proportional_bound(FIVE, 16, 256) == pytest.approx(280.4, abs=0.05)
    assert plan(ONE).seconds < 1.1 * proportional_bound(ONE, 16, 256)
    assert plan(FIVE).seconds < 1.1 * proportional_bound(FIVE, 16, 256)


def test_memory_limits_the_layers_of_a_group_that_is_smaller_than_normal() -> None:
    """(5 x 2934 + 1200) x 2 + 4500 is below the limit, and with 6 layers it is not."""
    assert MEMORY.most_layers(0, 4, 2.0) == 5
    assert plan(ONE).pipelines[0].layers[0] <= 5


def test_layers_that_fit_nowhere_are_refused() -> None:
    with pytest.raises(InfeasibleError, match="200 layers fit on no 2 pipelines"):
        plan({}, num_layers=200)
