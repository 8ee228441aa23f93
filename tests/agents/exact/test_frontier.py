"""The frontier against brute force: every placement of small problems."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.exact.frontier import solve_frontier
from heterps_agents.exact.solve import solve
from heterps_envs.closed_form.formula import evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.problem_sets.chains import generate
from tests.envs.small_problems import all_placement_codes, random_tables


def brute_force_frontier(
    step_time_s: np.ndarray, cost: np.ndarray, floor_s: float
) -> list[tuple[float, float]]:
    front: list[tuple[float, float]] = []
    for seconds, price in sorted(zip(step_time_s, cost, strict=True)):
        cheaper = not front or price < front[-1][1] * (1 - 1e-9)
        if seconds < math.inf and seconds <= floor_s and cheaper:
            front.append((float(seconds), float(price)))
    return front


@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.sampled_from([(1, 1), (3,), (2, 1), (2, 2), (1, 1, 1)]),
    st.sampled_from([1.0, 1.5, math.inf]),
)
@settings(max_examples=60, deadline=None)
def test_the_frontier_is_that_of_all_placements(
    seed: int, num_layers: int, counts: tuple[int, ...], slack: float
) -> None:
    kernel = kernel_tables(random_tables(seed, num_layers, counts))
    codes = all_placement_codes(num_layers, counts)
    step_time_s, price, _ = evaluate(codes, kernel)
    floor_s = float(step_time_s.min()) * slack if slack < math.inf else math.inf
    expected = brute_force_frontier(step_time_s, step_time_s * price, floor_s * (1 + 1e-12))
    found = solve_frontier(kernel, floor_s * (1 + 1e-12))
    assert found.status == ("optimal" if expected else "infeasible")
    points = [(point.step_time_s, point.price_usd_per_hour) for point in found.points]
    assert [seconds for seconds, _ in points] == pytest.approx([s for s, _ in expected])
    assert [s * price for s, price in points] == pytest.approx([cost for _, cost in expected])


def test_the_ends_are_the_fastest_and_the_cheapest_placement() -> None:
    kernel = kernel_tables(generate(1, 4, (16, 16), (3, 3), (3, 3))[0])
    fastest, cheapest = solve(kernel), solve(kernel, Goal(is_price=True))
    points = solve_frontier(kernel).points
    assert len(points) > 2
    assert points[0].step_time_s == pytest.approx(fastest.step_time_s)
    assert points[-1].step_time_s * points[-1].price_usd_per_hour == pytest.approx(
        cheapest.step_time_s * cheapest.price_usd_per_hour
    )


def test_a_frontier_over_the_limits_is_refused() -> None:
    kernel = kernel_tables(generate(1, 0, (64, 64), (8, 8), (8, 8))[0])
    assert solve_frontier(kernel) == ((), "over budget")
