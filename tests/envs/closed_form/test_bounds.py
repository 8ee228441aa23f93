"""Lower bounds: below every placement, and as good as the linear programme that they come from."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Bound
from heterps_envs.closed_form.bounds import (
    bound_by_optimum,
    bound_for,
    cheapest_step,
    layer_bound_s,
    lower_bound,
    price_bound,
)
from heterps_envs.closed_form.formula import evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import (
    PlacedStage,
    closed_form_of_plan_s,
    closed_form_step_time_s,
)
from heterps_envs.cost_tables import CostTables
from heterps_envs.options import option_tables, options_of
from heterps_envs.simulator.binding import bind
from heterps_envs.useful_options import with_columns
from tests.envs.small_problems import (
    all_placement_codes,
    chain_problem,
    plan_of,
    random_tables,
    with_splits,
)

SEEDS = st.integers(0, 10_000)


def relaxed_optimum(tables: CostTables) -> float:
    """The dual linear programme: maximise the sum of `v_l <= price_d work_ld`."""
    work = tables.num_micro_batches * tables.compute_s + tables.optimizer_s
    layers, classes = work.shape
    rows = np.zeros((layers * classes, layers + classes))
    for layer in range(layers):
        for kind in range(classes):
            rows[layer * classes + kind, layer] = 1
            rows[layer * classes + kind, layers + kind] = -work[layer, kind]
    result = linprog(
        -np.r_[np.ones(layers), np.zeros(classes)],
        A_ub=rows,
        b_ub=np.zeros(len(rows)),
        A_eq=[np.r_[np.zeros(layers), tables.device_count]],
        b_eq=[1],
    )
    return float(-result.fun)


@given(SEEDS, st.integers(1, 4), st.sampled_from([(1, 1), (3,), (2, 1), (2, 2)]))
@settings(max_examples=60)
def test_no_placement_is_below_the_bound(
    seed: int, num_layers: int, counts: tuple[int, ...]
) -> None:
    tables = random_tables(seed, num_layers, counts)
    codes = all_placement_codes(num_layers, counts)
    step_time_s, price, _ = evaluate(codes, kernel_tables(tables))
    bound_s, prices = price_bound(tables)
    assert bound_s <= step_time_s.min() * (1 + 1e-9)
    assert cheapest_step(tables) <= (step_time_s * price).min() * (1 + 1e-9)
    assert tables.device_count @ prices == pytest.approx(1)


@given(SEEDS, st.integers(4, 30), st.integers(1, 6))
@settings(max_examples=30)
def test_two_hundred_price_updates_come_close_to_the_linear_programme(
    seed: int, num_layers: int, num_classes: int
) -> None:
    tables = random_tables(
        seed, num_layers, range(1, num_classes + 1), memory_bytes=np.full(num_classes, 1e9)
    )
    optimum = relaxed_optimum(tables)
    bound_s, prices = price_bound(tables)
    work = tables.num_micro_batches * tables.compute_s + tables.optimizer_s
    assert optimum * 0.98 <= (prices * work).min(axis=1).sum() <= optimum * (1 + 1e-6)
    assert bound_s >= optimum * 0.98


def test_one_long_layer_bounds_what_more_devices_cannot_help() -> None:
    problem = chain_problem([1, 5], [2, 10], num_micro_batches=4, counts=(3,))
    assert layer_bound_s(problem.tables).tolist() == [6.0, 30.0]  # ceil(4 / 3) micro-batches each
    assert price_bound(problem.tables)[0] == 30.0


def test_a_layer_that_fits_nowhere_makes_the_bound_infinite() -> None:
    problem = chain_problem([1, 1], [1, 1], parameters=[1, 100], memory_bytes=[50])
    assert price_bound(problem.tables)[0] == math.inf


def test_without_any_option_the_bound_is_infinite() -> None:
    problem = chain_problem([1.0], [2.0])
    tables = with_columns(option_tables(problem, options_of(problem, Strategy())), [])
    assert price_bound(tables)[0] == math.inf
    assert layer_bound_s(tables)[0] == math.inf


def test_a_class_on_which_a_layer_does_not_fit_does_not_lower_the_bound() -> None:
    both = chain_problem([1], [1], speeds=(1, 10), counts=(1, 1), parameters=[5])
    slow = chain_problem(
        [1], [1], speeds=(1, 10), counts=(1, 1), parameters=[5], memory_bytes=[30, 50]
    )
    assert price_bound(both.tables)[0] == pytest.approx(16)
    assert price_bound(slow.tables)[0] == pytest.approx(160)


def test_the_gap_of_a_plan_is_its_closed_form_over_the_bound() -> None:
    problem = chain_problem([1, 1], [1, 1], num_micro_batches=4, counts=(2,))
    best = bind(problem, (PlacedStage(0, 1, 0, 2),), planner="test", seed=0)
    assert bound_for(problem, best).status == "bounded"
    assert bound_for(problem, best).gap == pytest.approx(0, abs=1e-9)
    alone = bind(problem, (PlacedStage(0, 1, 0),), planner="test", seed=0)
    assert bound_for(problem, alone).step_time_s == pytest.approx(8)
    assert bound_for(problem, alone).gap == pytest.approx(1)


def test_where_options_are_open_the_gap_is_that_of_the_plan_with_its_options() -> None:
    problem = chain_problem([1, 1], [1, 1], num_micro_batches=4, counts=(2,))
    again = replace(problem, strategy=Strategy(recompute="full"))
    alone = bind(again, (PlacedStage(0, 1, 0, 2, recompute=True),), planner="test", seed=0)
    bound = bound_for(again, alone)
    assert bound.step_time_s == pytest.approx(12)
    assert bound.gap == pytest.approx(0, abs=1e-9)
    # Three forward passes for two: of the plan that the strategy forbids nothing is known.
    kept = bind(again, (PlacedStage(0, 1, 0, 2),), planner="test", seed=0)
    assert (bound_for(again, kept), bound_for(problem, alone)) == (Bound(), Bound())


def test_nothing_is_said_of_a_plan_that_is_beyond_the_rule_of_planners() -> None:
    problem = chain_problem(
        [1, 1], [1, 1], speeds=(1, 16), counts=(1, 1), parameters=[5, 5], memory_bytes=[41, 200]
    )
    fast = bind(problem, (PlacedStage(0, 1, 0),), planner="test", seed=0)
    assert closed_form_step_time_s(problem, (PlacedStage(0, 1, 0),)) < lower_bound(problem.tables)
    assert bound_for(problem, fast) == Bound()


def test_an_optimum_that_lost_digits_bounds_no_groups_that_planners_do_not_form() -> None:
    # Sums over layers of years are no proof of the last digits of four seconds.
    chain = chain_problem(
        [1, 1], [1, 1], num_micro_batches=1, speeds=(1, 5e8), counts=(3, 1), parameters=[8, 8]
    )
    problem = replace(with_splits(chain), strategy=Strategy(tensor_parallel=(1, 2)))
    alone = bind(problem, (PlacedStage(0, 1, 0),), planner="test", seed=0)
    bound = bound_by_optimum(problem, alone, 4.0, 1.0)
    assert bound == bound_for(problem, alone)
    # Placements make no pairs of three devices; the strategy allows them.
    placement = (PlacedStage(0, 1, 0, degree=2),)
    pair = bind(problem, placement, planner="test", seed=0)
    assert bound.step_time_s is not None
    assert bound.step_time_s <= closed_form_of_plan_s(problem, pair, placement) < 4


def test_with_the_objective_price_the_gap_is_that_of_the_price() -> None:
    problem = chain_problem(
        [1, 1], [1, 1], speeds=(1, 2), counts=(2, 2), prices=[3.0, 1.0], objective="price"
    )
    cheapest = bind(problem, (PlacedStage(0, 1, 1),), planner="test", seed=0)
    assert bound_for(problem, cheapest).gap == pytest.approx(0)
    fast = bind(problem, (PlacedStage(0, 1, 0),), planner="test", seed=0)
    assert bound_for(problem, fast).gap == pytest.approx(0.5)


def test_a_plan_without_a_closed_form_has_a_bound_and_no_gap() -> None:
    problem = chain_problem([1, 1], [1, 1], num_micro_batches=4)
    plan = plan_of(problem, {"a": (0, 0, "d0-0"), "b": (1, 1, "d0-0")}, {("a", "b"): range(4)})
    bound = bound_for(problem, plan)
    assert bound.step_time_s is not None
    assert (bound.gap, bound.status) == (None, "unknown")
