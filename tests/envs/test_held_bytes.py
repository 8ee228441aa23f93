"""What a stage holds as planners count it, beside what the simulator says of the same plan."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from heterps_configs.documents.job import Schedule
from heterps_envs.held_bytes import held_bytes
from heterps_envs.problem import Problem
from heterps_envs.schedule.plan_arrays import state_parts
from heterps_envs.stage_tables import has_strategies, stage_tables
from tests.envs.small_problems import chain_problem, plan_of
from tests.envs.stages_that_drop import (
    ROUNDING_BYTES,
    held_in_flight,
    plans,
    problems,
    simulated_bytes,
)


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_no_stage_holds_more_than_is_counted(data: st.DataObject) -> None:
    problem = data.draw(problems())
    plan = data.draw(plans(problem))
    simulated, parts = simulated_bytes(problem, plan), state_parts(plan)
    micro_batches = held_in_flight(problem, plan)
    for index, stage in enumerate(plan.stages):
        kind = problem.class_of[stage.devices[0]]
        held = held_bytes(problem, stage, kind, parts)
        counted = held.state_bytes.sum() + micro_batches[index] * held.kept_bytes
        counted += problem.usable_bytes(stage.devices[0]) - held.room_bytes
        assert simulated[index] <= counted + ROUNDING_BYTES


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_alone_on_a_device_a_stage_holds_what_is_counted_to_the_byte(data: st.DataObject) -> None:
    schedules: tuple[Schedule, ...] = ("1f1b", "gpipe")
    problem = data.draw(problems(schedules, counts=(1,)))
    plan = data.draw(plans(problem, counts=(1,)))
    (stage,) = plan.stages
    assume(stage.recompute_layers or stage.offloaded_layers)
    assume(len(set(problem.job.micro_batch_sizes)) == 1)
    held = held_bytes(problem, stage, 0, state_parts(plan))
    (micro_batches,) = held_in_flight(problem, plan)
    (simulated,) = simulated_bytes(problem, plan)
    counted = held.state_bytes.sum() + micro_batches * held.kept_bytes
    counted += problem.usable_bytes(stage.devices[0]) - held.room_bytes
    assert counted == pytest.approx(simulated, abs=ROUNDING_BYTES)


def puts_off() -> Problem:
    """Two layers that save 10 bytes, and put off 30 in a zero-bubble schedule."""
    problem = chain_problem(
        [1.0] * 2, [2.0] * 2, counts=(1,), activation_bytes=[10.0] * 2, schedule="zero-bubble"
    )
    layers = tuple(
        layer.changed(deferred_bytes=30.0, saved_input_bytes=0.0)
        for layer in problem.profile.layers
    )
    return replace(problem, profile=problem.profile.changed(layers=layers))


def test_what_layers_put_off_counts_where_they_are_computed_again() -> None:
    problem = puts_off()
    plan = plan_of(problem, {"a": (0, 1, "d0")}, {("a",): range(8)})
    again = plan.changed(stages=(plan.stages[0].changed(recompute_layers=(0, 1)),))
    held = held_bytes(problem, again.stages[0], 0, np.ones(2))
    assert held.kept_bytes == 2 * 30
    # The front layer is computed again when the back one has put off its part.
    assert problem.usable_bytes("d0") - held.room_bytes == 10
    assert simulated_bytes(problem, again).tolist() == [30 + 10 + 30]


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_tables_of_a_plan_count_the_same(data: st.DataObject) -> None:
    problem = data.draw(problems())
    plan = data.draw(plans(problem).filter(has_strategies))
    ranges = sorted({(stage.first_layer, stage.last_layer) for stage in plan.stages})
    tables, parts = stage_tables(problem, plan, ranges), state_parts(plan)
    for index, (first, last) in enumerate(ranges):
        stage = next(each for each in plan.stages if each.first_layer == first)
        held = held_bytes(problem, stage, problem.class_of[stage.devices[0]], parts)
        part = slice(first, last + 1)
        assert tables.memory_bytes[index] == held.room_bytes
        assert tables.activation_bytes[part].sum() == pytest.approx(held.kept_bytes)
        np.testing.assert_allclose(tables.state_bytes[part], held.state_bytes)
