"""Bounds that know memory: below every placement, and above those that do not know it."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from heterps_envs.closed_form.bounds import cheapest_step, lower_bound, price_bound
from heterps_envs.closed_form.formula import evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.memory_bounds import (
    least_bytes,
    memory_cheapest_step,
    memory_price_bound,
    work_s,
)
from heterps_envs.cost_tables import CostTables
from tests.envs.small_problems import all_placement_codes, chain_problem, random_tables

SEEDS = st.integers(0, 100_000)


def tight_tables(
    seed: int, num_layers: int, counts: tuple[int, ...], slack: float = 1.0
) -> CostTables:
    """Memory that no device has enough of for the whole model."""
    rng = np.random.default_rng(seed)
    free = random_tables(seed, num_layers, counts)
    need = free.state_bytes.sum() + free.activation_bytes.sum()
    memory = need * rng.uniform(0.3, 1.5, len(counts)) * rng.uniform(0.6, 1.6) * slack / sum(counts)
    return random_tables(seed, num_layers, counts, memory_bytes=memory)


@given(SEEDS, st.integers(1, 4), st.sampled_from([(1, 1), (3,), (2, 1), (2, 2), (1, 1, 1)]))
@settings(max_examples=300, deadline=None)
def test_no_placement_is_below_the_bounds(
    seed: int, num_layers: int, counts: tuple[int, ...]
) -> None:
    tables = tight_tables(seed, num_layers, counts)
    codes = all_placement_codes(num_layers, counts)
    step_time_s, price, _ = evaluate(codes, kernel_tables(tables))
    best_s = step_time_s.min()
    if best_s == math.inf:
        return
    assert memory_price_bound(tables).value <= best_s * (1 + 1e-9)
    assert price_bound(tables)[0] <= lower_bound(tables) <= best_s * (1 + 1e-9)
    cost = np.where(step_time_s < math.inf, step_time_s * price, math.inf).min()
    assert memory_cheapest_step(tables).value <= cost * (1 + 1e-9)
    assert cheapest_step(tables) <= cost * (1 + 1e-9)


@given(SEEDS, st.integers(2, 12), st.sampled_from([(1, 1), (2, 1), (2, 2), (1, 2, 3)]))
@settings(max_examples=60, deadline=None)
def test_the_prices_are_a_feasible_point_of_the_dual(
    seed: int, num_layers: int, counts: tuple[int, ...]
) -> None:
    tables = tight_tables(seed, num_layers, counts)
    found = memory_price_bound(tables)
    if found.value == math.inf:
        return
    each = work_s(tables) * found.per_device_s + least_bytes(tables) * found.per_byte
    room = tables.device_count * tables.memory_bytes
    assert tables.device_count @ found.per_device_s == pytest.approx(1)
    assert (found.per_byte >= 0).all()
    assert each.min(axis=1).sum() - room @ found.per_byte == pytest.approx(found.value)


def relaxed_optimum(tables: CostTables) -> float:
    """The linear programme: least T with all work and all bytes of every class kept."""
    work, need = work_s(tables), least_bytes(tables)
    layers, classes = work.shape
    rows, limits = [], []
    for kind in range(classes):
        for values, per_second, limit in (
            (np.where(np.isfinite(work), work, 0.0), -float(tables.device_count[kind]), 0.0),
            (need, 0.0, float(tables.device_count[kind] * tables.memory_bytes[kind])),
        ):
            row = np.zeros((layers, classes))
            row[:, kind] = values[:, kind]
            rows.append(np.append(row, per_second))
            limits.append(limit)
    placed = np.hstack([np.kron(np.eye(layers), np.ones(classes)), np.zeros((layers, 1))])
    result = linprog(
        np.append(np.zeros(layers * classes), 1.0),
        A_ub=rows,
        b_ub=limits,
        A_eq=placed,
        b_eq=np.ones(layers),
        bounds=[(0, None if np.isfinite(value) else 0) for value in work.ravel()] + [(0, None)],
    )
    return float(result.fun) if result.status == 0 else math.inf


def test_the_updates_come_close_to_the_linear_programme() -> None:
    ratios = []
    for seed in range(80):
        tables = tight_tables(seed, 16, (2, 2, 1), slack=1.6)
        optimum = relaxed_optimum(tables)
        if optimum < math.inf:
            ratios.append(memory_price_bound(tables).value / optimum)
    assert len(ratios) > 20
    assert max(ratios) <= 1 + 1e-6
    assert np.median(ratios) > 0.99


def test_a_fast_device_that_can_hold_only_half_of_the_layers_raises_the_bound() -> None:
    """The slow device must take at least one of two layers, for 4 x 2 x 10 seconds."""
    problem = chain_problem(
        [1, 1],
        [1, 1],
        num_micro_batches=4,
        speeds=(1, 10),
        counts=(1, 1),
        parameters=[10, 10],
        memory_bytes=[80, 160],
    )
    assert price_bound(problem.tables)[0] < 16
    assert memory_price_bound(problem.tables).value == pytest.approx(80, rel=0.02)


def test_a_layer_far_from_the_end_needs_room_for_what_is_in_flight() -> None:
    """Each layer fills a device with its state: three devices stand behind the first layer."""
    problem = chain_problem(
        [1] * 4,
        [1] * 4,
        parameters=[10] * 4,
        activation_bytes=[1.0] * 4,
        memory_bytes=[100],
        counts=(5,),
    )
    assert least_bytes(problem.tables)[:, 0].tolist() == [84.0, 83.0, 82.0, 81.0]


def test_devices_that_must_wait_for_the_first_micro_batch_raise_the_bound() -> None:
    problem = chain_problem(
        [1] * 4, [1] * 4, num_micro_batches=1, parameters=[10] * 4, memory_bytes=[80], counts=(4,)
    )
    # 8 s of work on four devices, which wait 0, 2, 4 and 6 s: 20 device-seconds.
    assert memory_price_bound(problem.tables).value == pytest.approx(5.0)
