"""Plans of the own runs fit their problems."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.fidelity.own_plans import (
    EMULATED_PLANS,
    NUM_MICRO_BATCHES,
    cuts,
    emulated_cluster,
    job_of,
    plan_named,
)
from heterps_configs.library import load_profile
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate


@given(st.lists(st.integers(1, 9), min_size=1, max_size=8), st.integers(0, 40))
def test_cuts_rise_leave_no_stage_empty_and_end_at_the_last_layer(
    shares: list[int], more: int
) -> None:
    stops = cuts(shares, len(shares) + more)
    assert all(a < b for a, b in zip((0, *stops), stops, strict=False))
    assert stops[-1] == len(shares) + more


def test_cuts_follow_the_shares() -> None:
    assert cuts([1, 3, 2], 12) == (2, 8, 12)


@pytest.mark.parametrize("name", EMULATED_PLANS)
def test_every_named_plan_can_be_estimated(name: str) -> None:
    problem = Problem(load_profile("llama-tiny"), emulated_cluster(12.0), job_of(2, "1f1b"))
    plan = plan_named(problem, name)
    routed = [m for pipeline in plan.pipelines for m in pipeline.micro_batches]
    assert sorted(routed) == list(range(NUM_MICRO_BATCHES))
    assert estimate(problem, plan).step_time_s > 0


def test_emulated_cluster_has_a_slow_link_between_its_nodes() -> None:
    problem = Problem(load_profile("llama-tiny"), emulated_cluster(12.0), job_of(2, "1f1b"))
    inside, between = problem.link("d0", "d1"), problem.link("d0", "d2")
    assert between.latency_s > inside.latency_s
    assert between.bandwidth_bytes_per_s < inside.bandwidth_bytes_per_s
