"""Fixtures of Malleus (arXiv 2410.13333): 16 GPUs, 2 pipelines of 4 stages, 32 layers."""

from __future__ import annotations

import pytest

from heterps_agents.systems.malleus.memory import StageMemory
from heterps_agents.systems.malleus.plans import (
    StragglerPlan,
    UniformPlan,
    proportional_bound,
    uniform_seconds,
)
from heterps_agents.systems.malleus.straggler import replan_stragglers
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
