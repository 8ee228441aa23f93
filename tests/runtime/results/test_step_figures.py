"""The figures of a step: who computed, who waited, and what passes took."""

from __future__ import annotations

import pytest

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import simulate
from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.results.step_figures import (
    bubble_share,
    busy_s,
    step_figures,
    step_row,
    timeline_rows,
)
from tests.runtime.small_runs import chain_of, plan_of, problem_of


def _two_stages_on_one_device(schedule: str) -> tuple[Problem, Plan]:
    problem = problem_of("sequential", slowdowns=(1, 1, 2, 4), schedule=schedule)
    stages = {"a": (0, 2, "d0"), "b": (3, 4, "d1"), "c": (5, -1, "d0")}
    return problem, plan_of(problem, stages)


def test_waiting_and_all_reduces_are_bubble_passes_and_the_optimizer_are_not() -> None:
    records = [
        ActionRecord("receive", "s0", 0, 0.0, 1.0),
        ActionRecord("forward", "s0", 0, 1.0, 2.0),
        ActionRecord("send", "s0", 0, 2.0, 2.0),
        ActionRecord("backward-input", "s0", 0, 4.0, 5.0),
        ActionRecord("backward-weight", "s0", 0, 5.0, 5.5),
        ActionRecord("reduce", "", -1, 6.0, 7.0),
        ActionRecord("step", "", -1, 7.0, 7.5),
    ]
    assert busy_s(records) == 3.0
    assert bubble_share(3.0, 10.0) == 0.7
    # An emulated device that is late pays back: more seconds of work than the step has.
    assert bubble_share(3.0, 2.0) == 0.0


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zero-bubble"])
def test_the_simulators_bubble_is_the_mean_over_devices(schedule: str) -> None:
    problem, plan = _two_stages_on_one_device(schedule)
    estimate = simulate(problem, plan)
    rows = timeline_rows(plan, estimate.timeline)
    figures = step_figures(plan, estimate.step_time_s, rows, estimate.memory_bytes)
    shares = figures.bubble_shares
    assert set(shares) == {"d0", "d1"}
    assert sum(shares.values()) / 2 == pytest.approx(estimate.bubble_share)
    assert [(entry.device, entry.stage) for entry in figures.stages] == [
        ("d0", "a"), ("d0", "c"), ("d1", "b"),
    ]  # fmt: skip
    assert all(entry.backward_s > entry.forward_s > 0 for entry in figures.stages)


def test_rows_of_all_devices_are_equally_long_also_of_idle_ones() -> None:
    _, plan = _two_stages_on_one_device("1f1b")
    assert [step_row(plan, device, []) for device in ("d0", "d1", "d3")] == [[0.0] * 5] * 3


def test_a_stage_that_ran_nothing_has_no_figures() -> None:
    problem = problem_of("sequential")
    plan = chain_of(problem, 3)
    rows = {"d0": [1.0, 0.5, 0.25], "d1": [0.0, 0.0, 0.0]}
    assert [entry.device for entry in step_figures(plan, 2.0, rows, {}).stages] == ["d0"]
