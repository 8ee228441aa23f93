"""No plan that can be run is simulated in less than the bound says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heterps_configs.documents.job import Strategy
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import feasible_step_time_s
from heterps_envs.step_bounds.executable import (
    are_soon_too_few,
    is_too_few,
    least_executable_s,
    may_be_too_few,
)
from tests.envs.simulator.test_compiled_simulator import runs
from tests.envs.simulator.test_memory_timeline import planned
from tests.envs.small_problems import chain_problem, plan_of

ROUNDING = 1e-9


def over_bound(problem: Problem, plan: Plan) -> float:
    step_time_s = feasible_step_time_s(problem, plan)
    assume(np.isfinite(step_time_s))
    return step_time_s - least_executable_s(problem) * (1 - ROUNDING)


@pytest.mark.slow
@given(runs(are_alone=True), st.integers(0, 3))
@settings(max_examples=75, deadline=None)
def test_no_plan_with_a_stage_on_each_device_is_below_it(
    case: tuple[Problem, Plan], more: int
) -> None:
    problem, plan = case
    if more and problem.job.schedule == "1f1b":
        stages = tuple(stage.changed(in_flight=more) for stage in plan.stages)
        plan = plan.changed(stages=stages)
    allowed = Strategy(shard_state="auto") if plan.sharded_state else Strategy()
    assert over_bound(replace(problem, strategy=allowed), plan) >= 0


@pytest.mark.slow
@given(planned())
@settings(max_examples=40, deadline=None)
def test_no_plan_that_fits_in_tight_memory_is_below_it(found: tuple[Problem, Plan]) -> None:
    assert over_bound(*found) >= 0


@pytest.mark.slow
@given(planned(), st.data())
@settings(max_examples=25, deadline=None)
def test_no_plan_that_computes_layers_again_is_below_it(
    found: tuple[Problem, Plan], data: st.DataObject
) -> None:
    problem, plan = found
    stages = tuple(
        stage.changed(recompute_layers=tuple(stage.layers)) if data.draw(st.booleans()) else stage
        for stage in plan.stages
    )
    allowed = replace(problem, strategy=Strategy(recompute="auto"))
    assert over_bound(allowed, plan.changed(stages=stages)) >= 0


def test_one_device_does_all_passes_and_its_optimizer_step() -> None:
    problem = chain_problem(
        [1.0, 2.0], [3.0, 4.0], num_micro_batches=5, optimizer_s=[0.5, 0.5], counts=(1,)
    )
    assert least_executable_s(problem) == pytest.approx(51.0, rel=2e-3)
    plan = plan_of(problem, {"a": (0, 1, "d0")}, {("a",): range(5)})
    assert feasible_step_time_s(problem, plan) == pytest.approx(51.0)


def test_devices_have_whole_micro_batches() -> None:
    """Three micro-batches on two devices: one has two of them, or they follow each other."""
    problem = chain_problem([1.0], [1.0], num_micro_batches=3, counts=(2,))
    assert least_executable_s(problem) == pytest.approx(4.0, rel=2e-3)


def test_where_no_device_holds_two_layers_the_way_through_the_others_counts() -> None:
    free = chain_problem([1.0, 1.0], [1.0, 1.0], num_micro_batches=4, counts=(2,))
    tight = chain_problem(
        [1.0, 1.0], [1.0, 1.0], num_micro_batches=4, counts=(2,), parameters=[10, 10],
        memory_bytes=[100],
    )  # fmt: skip
    assert least_executable_s(free) == pytest.approx(8.0, rel=2e-3)
    # The second stage waits a forward pass, and the first one for its last gradient.
    assert least_executable_s(tight) == pytest.approx(10.0, rel=2e-3)
    plan = plan_of(tight, {"a": (0, 0, "d0-0"), "b": (1, 1, "d0-1")}, {("a", "b"): range(4)})
    assert feasible_step_time_s(tight, plan) == pytest.approx(10.0, rel=2e-3)


def test_nothing_fits_is_infinite_and_interleaved_stages_have_no_bound() -> None:
    full = chain_problem([1.0], [1.0], parameters=[1000], memory_bytes=[10])
    assert least_executable_s(full) == float("inf")
    loop = chain_problem([1.0], [1.0], schedule="interleaved")
    assert least_executable_s(loop) == 0.0


def test_what_is_far_above_the_rough_bound_is_not_worth_asking() -> None:
    problem = chain_problem([1.0, 2.0], [3.0, 4.0], num_micro_batches=6, counts=(2, 2))
    least_s = least_executable_s(problem)
    assert is_too_few(problem, least_s * 0.9)
    assert may_be_too_few(problem, least_s * 0.9)
    assert not may_be_too_few(problem, least_s * 2)
    assert may_be_too_few(problem, least_s * 2, times=4)
    assert not is_too_few(problem, least_s * 2)


def test_of_several_problems_the_seconds_have_to_be_too_few_for_each() -> None:
    short, long = (
        chain_problem([1.0, 2.0], [3.0, backward_s], num_micro_batches=6, counts=(2, 2))
        for backward_s in (4.0, 8.0)
    )
    step_s = least_executable_s(short)
    assert are_soon_too_few([short, long], step_s * 0.9, lambda: False)
    assert not are_soon_too_few([long, short], step_s * 1.1, lambda: False)


def test_one_micro_batch_takes_a_chain_of_stages() -> None:
    """No layer leaves the fast device: a message there and back takes longer than it saves."""
    problem = chain_problem(
        [1.0, 2.0], [3.0, 4.0], num_micro_batches=1, optimizer_s=[0.5, 0.5], counts=(1, 1),
        speeds=(1.0, 2.0),
    )  # fmt: skip
    assert least_executable_s(problem) == pytest.approx(11.0, rel=1e-8)
    tight = chain_problem(
        [1.0, 2.0], [3.0, 4.0], num_micro_batches=1, optimizer_s=[0.5, 0.7], counts=(1, 1),
        speeds=(1.0, 2.0), parameters=[10, 10], memory_bytes=[100, 100],
    )  # fmt: skip
    plans = [
        plan_of(tight, {"a": (0, 0, front), "b": (1, 1, back)}, {("a", "b"): range(1)})
        for front, back in (("d0", "d1"), ("d1", "d0"))
    ]
    least_s = min(feasible_step_time_s(tight, plan) for plan in plans)
    assert least_executable_s(tight) == pytest.approx(least_s, rel=1e-6)
