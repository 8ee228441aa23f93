"""The integer programme of the chain problem against the exact solver and brute force."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.exact.solve import solve
from heterps_envs.closed_form.formula import REPLICA_SHIFT, evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.closed_form.placement import encode
from heterps_envs.cost_tables import CostTables
from tests.agents.exact.milp_chain import milp_chain
from tests.envs.small_problems import all_placement_codes, random_tables

SEEDS = st.integers(0, 100_000)
# HiGHS keeps to each row up to a millionth of its unit, which is more than a step takes.
TOLERANCE = 2e-5


def small_tables(seed: int, counts: list[int]) -> CostTables:
    """Stages hold what the rule says or, one time in two, as many as they like: all have room."""
    rng = np.random.default_rng(seed)
    tables = random_tables(seed, int(rng.integers(1, 5)), counts, holds_by_rule=rng.random() < 0.5)
    if tables.is_gpipe or tables.holds_by_rule:
        return tables
    everything = tables.state_bytes + tables.num_micro_batches * tables.activation_bytes
    return replace(tables, memory_bytes=np.full(len(counts), 1.01 * everything.sum()))


def best_by_trying(tables: CostTables, counts: list[int], max_replicas: int) -> float:
    codes = all_placement_codes(tables.num_layers, tuple(counts))
    are_kept = (codes < max_replicas << REPLICA_SHIFT).all(1)
    return float(evaluate(codes[are_kept], kernel_tables(tables))[0].min())


@pytest.mark.slow
@settings(max_examples=120, deadline=None)
@given(SEEDS, st.sampled_from([[1], [1, 1], [1, 1, 1]]))
def test_solver_programme_and_brute_force_agree_on_single_devices(
    seed: int, counts: list[int]
) -> None:
    tables = small_tables(seed, counts)
    expected = best_by_trying(tables, counts, 1)
    assert solve(kernel_tables(tables)).step_time_s == pytest.approx(expected, rel=1e-9)
    found = milp_chain(tables)
    assert found.step_time_s == pytest.approx(expected, rel=TOLERANCE)
    assert found.lower_bound_s == pytest.approx(expected, rel=TOLERANCE)
    if found.placement is None:
        assert math.isinf(expected)
    else:
        code = encode(found.placement)[None]
        assert evaluate(code, kernel_tables(tables))[0][0] == pytest.approx(expected, rel=TOLERANCE)


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.sampled_from([[2], [2, 1], [2, 2]]))
def test_several_stages_of_one_class_are_one_device_each(seed: int, counts: list[int]) -> None:
    tables = small_tables(seed, counts)
    expected = best_by_trying(tables, counts, 1)
    assert milp_chain(tables).step_time_s == pytest.approx(expected, rel=TOLERANCE)
    assert best_by_trying(tables, counts, 2) <= expected


@settings(max_examples=25, deadline=None)
@given(SEEDS)
def test_the_cheapest_over_all_device_counts_is_the_optimum_of_the_price(seed: int) -> None:
    tables = small_tables(seed, [1, 1])
    cheapest = (
        min(
            float(np.dot(used, tables.price_usd_per_hour)) * found.step_time_s
            for used in itertools.product((0, 1), repeat=2)
            if any(used) and (found := milp_chain(tables, use_exactly=used)).placement is not None
        )
        if math.isfinite(milp_chain(tables).step_time_s)
        else math.inf
    )
    exact = solve(kernel_tables(tables), Goal(is_price=True, floor_s=math.inf))
    assert exact.price_usd_per_hour * exact.step_time_s == pytest.approx(cheapest, rel=TOLERANCE)
