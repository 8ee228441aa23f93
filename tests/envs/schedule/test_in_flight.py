"""Memory of plans, and what is said when there is no plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.formula import FITS, evaluate
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import PlacedStage, encode
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import BACKWARD, FORWARD
from heterps_envs.schedule.build import build_schedule
from heterps_envs.schedule.in_flight import (
    as_memory_allows,
    in_flight_micro_batches,
    in_flight_of_stages,
    routed_micro_batches,
)
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.plan_bound import least_step_time_s
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import estimate
from tests.envs.planned_memory import plan_memory_bytes
from tests.envs.small_problems import chain_problem, placements, plan_of


@given(st.data())
def test_a_placement_fits_in_the_closed_form_when_its_plan_fits(data: st.DataObject) -> None:
    sizes = st.lists(st.integers(0, 9), min_size=5, max_size=5)
    problem = chain_problem(
        [1] * 5,
        [1] * 5,
        num_micro_batches=12,  # every number of replicas divides it: no share is smaller
        counts=(3, 4),
        speeds=(1, 2),
        memory_bytes=[data.draw(st.integers(1, 300)), data.draw(st.integers(1, 300))],
        parameters=data.draw(sizes),
        activation_bytes=[float(value) for value in data.draw(sizes)],
        schedule=data.draw(st.sampled_from(["1f1b", "gpipe"])),
    )
    placement = data.draw(placements(5, (3, 4)))
    memory = plan_memory_bytes(problem, bind(problem, placement, planner="test", seed=0))
    fits = all(need <= problem.device_named[name].memory_bytes for name, need in memory.items())
    verdict = evaluate(encode(placement)[None], kernel_tables(problem.tables))[2][0]
    assert fits == (verdict == FITS)


def test_memory_is_state_and_the_activations_in_flight() -> None:
    problem = chain_problem(
        [1] * 3, [1] * 3, parameters=[1, 2, 3], activation_bytes=[10.0, 20.0, 30.0]
    )
    plan = bind(problem, [PlacedStage(i, i, 0) for i in range(3)], planner="test", seed=0)
    assert plan_memory_bytes(problem, plan) == {
        "d0-0": 8 + 3 * 10,
        "d0-1": 16 + 2 * 20,
        "d0-2": 24 + 30,
    }


def test_memory_allows_more_in_flight_where_layers_are_computed_again() -> None:
    # One device has room for about ten micro-batches of four layers that keep a byte each.
    problem = chain_problem(
        [1] * 4, [1] * 4, num_micro_batches=64, counts=(1,), memory_bytes=[44],
        parameters=[0] * 4, activation_bytes=[1.0] * 4,
    )  # fmt: skip
    plan = bind(problem, [PlacedStage(0, 3, 0)], planner="test", seed=0)
    again = plan.changed(
        stages=tuple(stage.changed(recompute_layers=tuple(stage.layers)) for stage in plan.stages)
    )

    def allowed(found: Plan) -> int:
        prepared = PreparedPlan(problem, found)
        held = in_flight_of_stages(found, prepared.arrays.shape)
        most = as_memory_allows(problem, found, prepared.arrays, held, held + 60)
        return int(most[0])

    assert allowed(again) > 2 * allowed(plan)


def test_state_that_replicas_divide_leaves_room_for_more_in_flight() -> None:
    # AdamW: 8 of the 16 bytes of a parameter are moments, of which each of two replicas has half.
    problem = chain_problem(
        [1], [1], num_micro_batches=64, counts=(2,), memory_bytes=[170],
        parameters=[10], activation_bytes=[1.0],
    )  # fmt: skip
    problem = replace(problem, job=problem.job.changed(optimizer="adamw"))
    for shards_state, room in ((False, 10), (True, 50)):
        placement = [PlacedStage(0, 0, 0, 2, shards_state=shards_state)]
        plan = bind(problem, placement, planner="test", seed=0)
        arrays = PreparedPlan(problem, plan).arrays
        held = in_flight_of_stages(plan, arrays.shape)
        most = as_memory_allows(problem, plan, arrays, held, held + 60)
        assert most.tolist() == [min(room, 32)] * 2


def test_a_device_with_two_stages_holds_both() -> None:
    problem = chain_problem([1] * 3, [1] * 3, parameters=[1, 2, 3], activation_bytes=[10.0] * 3)
    plan = plan_of(
        problem,
        {"a": (0, 0, "d0-0"), "b": (1, 1, "d0-1"), "c": (2, 2, "d0-0")},
        {("a", "b", "c"): range(8)},
    )
    assert plan_memory_bytes(problem, plan) == {"d0-0": (8 + 30) + (24 + 10), "d0-1": 16 + 20}


def test_tied_parameters_on_one_device_are_counted_once() -> None:
    problem = chain_problem([1] * 3, [1] * 3, parameters=[10, 1, 10], tied_to={2: 0})
    together = bind(problem, [PlacedStage(0, 2, 0)], planner="test", seed=0)
    apart = bind(problem, [PlacedStage(0, 1, 0), PlacedStage(2, 2, 0)], planner="test", seed=0)
    assert plan_memory_bytes(problem, together) == {"d0-0": 8 * 11}
    assert plan_memory_bytes(problem, apart) == {"d0-0": 8 * 11, "d0-1": 8 * 10}


def test_pipelines_that_share_no_stage_do_not_raise_each_others_limit() -> None:
    problem = chain_problem([1] * 4, [1] * 4, num_micro_batches=10)
    plan = plan_of(
        problem,
        {
            "a": (0, 1, "d0-0"),
            "b": (2, 3, "d0-1"),
            **{f"c{i}": (i, i, f"d0-{2 + i}") for i in range(4)},
        },
        {("a", "b"): range(9), ("c0", "c1", "c2", "c3"): [9]},
    )
    held = in_flight_micro_batches(plan)
    assert held == {"a": 2, "b": 1, "c0": 1, "c1": 1, "c2": 1, "c3": 1}


@pytest.mark.slow
@given(st.data())
def test_any_numbers_in_flight_run_to_the_end_and_hold_what_they_say(data: st.DataObject) -> None:
    counts = (3, 4)
    problem = chain_problem(
        [1, 2, 1, 3], [2, 1, 1, 1], num_micro_batches=8, counts=counts, speeds=(1, 2)
    )
    placement = data.draw(placements(4, counts))
    plan = bind(problem, placement, planner="test", seed=0)
    numbers = data.draw(st.lists(st.integers(1, 8), min_size=len(plan.stages)))
    chosen = plan.changed(
        stages=tuple(
            stage.changed(in_flight=number)
            for stage, number in zip(plan.stages, numbers, strict=False)
        )
    )
    schedule = build_schedule(problem, chosen)
    passing = routed_micro_batches(chosen)
    for index, stage in enumerate(chosen.stages):
        assert stage.in_flight is not None
        own = schedule.kind[schedule.stage == index]
        steps = np.where(own == FORWARD, 1, np.where(own == BACKWARD, -1, 0))
        assert int((own == FORWARD).sum()) == passing[stage.name]
        assert int(np.cumsum(steps).max()) <= min(stage.in_flight, passing[stage.name])
    bound_s = least_step_time_s(PreparedPlan(problem, chosen))
    assert estimate(problem, chosen).step_time_s >= bound_s * (1 - 1e-9)


def no_plan(**changes: object) -> Problem:
    return chain_problem([1.0, 2.0, 1.0], [1.0, 2.0, 1.0], **changes)  # type: ignore[arg-type]


def test_a_layer_that_fits_nowhere_is_named_with_the_bytes_that_are_missing() -> None:
    problem = no_plan(
        parameters=[1, 100, 1],
        activation_bytes=[0.0, 50.0, 0.0],
        speeds=(1, 1),
        counts=(2, 2),
        memory_bytes=[400, 700],
    )
    assert explain_infeasible(problem) == (
        "layer 1 (layer1) fits on no device: it needs 850 B (state 800 B, the rest activations), "
        "150 B more than a class1 has"
    )


def test_a_model_that_is_too_large_in_all_says_by_how_much() -> None:
    problem = no_plan(parameters=[10, 10, 10], counts=(2,), memory_bytes=[100])
    assert "needs at least 240 B, 40 B more than the 2 devices" in explain_infeasible(problem)


def test_a_stage_for_which_no_device_is_left_is_named() -> None:
    problem = no_plan(parameters=[10, 10, 10], counts=(2,), memory_bytes=[130])
    assert explain_infeasible(problem).startswith(
        "the stage of the layers 0..0 (layer0 .. layer0) fits on no device: the layers behind it "
        "fill 2 of the 2 devices"
    )


@pytest.mark.parametrize("floor", [0.9, 4.0])
def test_an_unreachable_floor_names_the_layer_that_limits_it(floor: float) -> None:
    problem = no_plan(counts=(2,), min_throughput=floor)
    text = explain_infeasible(problem)
    assert f"floor of {floor:g} samples/s is out of reach" in text
    assert "can exceed 0.25 samples/s" in text
    assert "layer 1 (layer1) limits it most: that layer alone allows 0.5 samples/s" in text


def test_a_floor_below_the_bound_is_not_called_impossible() -> None:
    text = explain_infeasible(no_plan(counts=(2,), min_throughput=0.24))
    assert "no plan found reaches the throughput floor of 0.24 samples/s" in text
    assert "bound for all plans is 0.25" in text
