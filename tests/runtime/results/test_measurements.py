"""Measurements: medians of full micro-batches, and the newest file wins."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.documents.stage import Stage
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.results.measurements import (
    ActionTimes,
    Measurements,
    StageTimes,
    measurements_path,
    newest_measurements,
)
from heterps_runtime.specification.build import build_specification
from tests.runtime.small_runs import DEVICES, chain_of, problem_of


def test_median_leaves_the_smaller_last_micro_batch_out() -> None:
    problem = problem_of("sequential", global_batch_size=10)
    plan = chain_of(problem, 3)
    schedule = build_schedule(problem, plan)
    specification = build_specification(
        problem, plan, schedule, RunSettings(steps=1), devices=DEVICES
    )
    times = ActionTimes(specification, "d0")
    times.add(
        ActionRecord(kind, "s0", m, 0.0, end_s)
        for kind, ends in (("forward", (1.0, 3.0, 0.1)), ("backward", (2.0, 4.0, 0.1)))
        for m, end_s in enumerate(ends)
    )
    times.add([ActionRecord("step", "", -1, 1.0, 1.5), ActionRecord("send", "s0", 0, 0.0, 9.0)])
    (entry,) = times.stages()
    assert (entry.device, entry.stage, entry.first_layer, entry.last_layer) == ("d0", "s0", 0, 2)
    assert (entry.forward_s, entry.backward_s, entry.num_samples) == (2.0, 3.0, 2)
    assert times.optimizer_s() == 0.5
    times.clear()
    assert times.stages() == []
    assert times.optimizer_s() == 0.0


def test_a_stage_without_a_full_micro_batch_is_scaled_to_one() -> None:
    problem = problem_of("sequential", global_batch_size=9, unequal_micro_batch_sizes=(2, 4, 1, 2))
    plan = chain_of(problem, 3)
    schedule = build_schedule(problem, plan)
    specification = build_specification(
        problem, plan, schedule, RunSettings(steps=1), devices=DEVICES
    )
    times = ActionTimes(specification, "d0")
    times.add(
        ActionRecord(kind, "s0", m, 0.0, end_s)
        for kind, ends in (("forward", {0: 1.0, 2: 0.7}), ("backward", {0: 2.0, 2: 0.9}))
        for m, end_s in ends.items()
    )
    (entry,) = times.stages()
    assert (entry.forward_s, entry.backward_s, entry.num_samples) == (2.0, 4.0, 1)


def test_a_backward_pass_in_two_parts_counts_as_their_sum() -> None:
    problem = problem_of("sequential", schedule="zero-bubble")
    plan = chain_of(problem, 3)
    schedule = build_schedule(problem, plan)
    specification = build_specification(
        problem, plan, schedule, RunSettings(steps=1), devices=DEVICES
    )
    times = ActionTimes(specification, "d0")
    times.add(
        [
            ActionRecord("forward", "s0", 0, 0.0, 1.0),
            ActionRecord("backward-input", "s0", 0, 2.0, 3.0),
            ActionRecord("backward-weight", "s0", 0, 5.0, 5.5),
        ]
    )
    (entry,) = times.stages()
    assert (entry.forward_s, entry.backward_s) == (1.0, 1.5)


def test_newest_published_measurements_are_read(tmp_path: Path) -> None:
    for step in (4, 14, 9):
        measurements = Measurements(
            step=step, num_steps=20, generation=0, step_time_s=1.0, stages=(), optimizer_s={}
        )
        measurements_path(tmp_path, step).write_text(measurements.model_dump_json())
    found = newest_measurements(tmp_path, after_step=4)
    assert found is not None
    assert (found.step, found.remaining_steps) == (14, 5)
    assert newest_measurements(tmp_path, after_step=14) is None
    assert found.stage_measurements() == []
    with pytest.raises(ValueError, match="frozen"):
        found.step = 3  # type: ignore[misc]


def test_devices_of_a_group_are_told_apart_by_what_they_took_themselves() -> None:
    group = Stage(name="g", first_layer=0, last_layer=3, devices=("d0", "d1"))
    entries = [
        StageTimes(
            device=device, stage=stage.name, first_layer=0, last_layer=3, forward_s=1.0,
            backward_s=2.0, num_samples=4, way=stage if stage.degree > 1 else None,
        )
        for device, stage in (
            ("d0", group), ("d1", group), ("d2", group.changed(name="s", devices=("d2",))),
        )
    ]  # fmt: skip
    found = Measurements(
        step=1, num_steps=9, generation=0, step_time_s=1.0, stages=tuple(entries), optimizer_s={},
        own_s={"d0": 2.0, "d1": 8.0, "d2": 0.0},
    )  # fmt: skip
    assert [each.busy_share for each in found.stage_measurements()] == [0.25, 1.0, 1.0]
    unknown = found.changed(own_s={})
    assert [each.busy_share for each in unknown.stage_measurements()] == [1.0, 1.0, 1.0]


def test_medians_of_a_long_run_are_those_of_steps_spread_over_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("heterps_runtime.results.measurements.MOST_STEPS", 64)
    problem = problem_of("sequential")
    plan = chain_of(problem, 3)
    specification = build_specification(
        problem, plan, build_schedule(problem, plan), RunSettings(steps=1), devices=DEVICES
    )
    times = ActionTimes(specification, "d0")
    for step in range(1000):
        times.add_passes(
            {
                ("forward", "s0", 0): step,
                ("forward", "s0", 1): step + 0.5,
                ("backward", "s0", 0): 2 * step,
            }
        )
    (entry,) = times.stages()
    assert entry.num_samples <= 2 * 64
    assert entry.forward_s == pytest.approx(500, rel=0.05)
    assert entry.backward_s == pytest.approx(1000, rel=0.05)
