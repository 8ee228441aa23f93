"""HARP's cost and launch counts: what its README prints, and 1F1B where links are free."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_agents.systems.harp.cost import launch_count, step_s

# Seconds of its README's plan: two stages with 22 and 28 of 50 layers, and their message.
COMPUTE_S, MESSAGE_S = (0.2143, 0.2202), 0.0760


def test_the_published_plan_costs_what_is_printed() -> None:
    """It prints 14.3811: its seconds have four digits, of which the period counts 64 times."""
    seconds = step_s(max(COMPUTE_S), sum(COMPUTE_S) + MESSAGE_S, 64)
    assert seconds == pytest.approx(14.3831, abs=1e-9)
    assert seconds == pytest.approx(14.3811, abs=64 * 5e-5)


def test_the_published_plan_launches_three_and_one() -> None:
    period_s = max(COMPUTE_S)
    assert launch_count(MESSAGE_S + COMPUTE_S[1], period_s, 1) == 3
    assert launch_count(0.0, period_s, 1) == 1


@given(st.integers(0, 40), st.floats(1e-6, 1e3))
def test_equal_stages_without_messages_launch_as_1f1b_does(behind: int, stage_s: float) -> None:
    total_s = sum(stage_s for _ in range(behind))
    assert launch_count(total_s, stage_s, 1) == behind + 1


@given(st.floats(0, 100), st.floats(0.01, 10), st.integers(1, 8))
def test_what_is_launched_hides_what_lies_behind_and_no_fewer_would(
    behind_s: float, period_s: float, replicas: int
) -> None:
    count = launch_count(behind_s, period_s, replicas)
    assert (count - 1) * replicas * period_s >= behind_s * (1 - 1e-6) - 1e-6
    assert count == 1 or (count - 2) * replicas * period_s < behind_s
