"""Which steps of a plan tell how long a step takes under it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.online.belief import Factors
from heterps_envs.online.corrected_devices import corrected
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.results.collect import RunRecord
from heterps_runtime.results.generation import Generation
from heterps_runtime.results.progress import DoneSteps
from heterps_runtime.specification.build import build_specification
from tests.runtime.elastic.small_runs import chain, elastic_problem


def _record(first_step: int, slow_from: int | None, drifts: Sequence[int] = ()) -> RunRecord:
    """A run of six steps: four of one plan, two of another."""
    problem = elastic_problem()
    plan = chain(problem, ("d0", "d1", "d2"))
    specification = build_specification(
        problem,
        plan,
        build_schedule(problem, plan),
        RunSettings(steps=first_step + 6),
        devices=plan.devices,
    )
    slow = () if slow_from is None else (RunEvent(step=slow_from, slow="d0", factor=2.0),)
    done = DoneSteps()
    done.generations.extend([0, 0, 0, 0, 1, 1])
    done.step_times_s.extend([9.0, 8.0, 1.0, 3.0, 5.0, 7.0])
    return RunRecord(
        problem=problem,
        specification=specification.changed(first_step=first_step, slowdowns=slow),
        generations=[Generation.of(problem, plan, build_schedule(problem, plan))] * 2,
        done=done,
        switches=(),
        evaluations=(),
        checkpoint=None,
        drifts=drifts,
    )


def test_steps_after_the_first_slowdown_count_only_where_a_plan_has_no_others() -> None:
    record = _record(first_step=10, slow_from=13)
    assert record.steady_steps(0) == range(3)
    assert record.steady_steps(1) == range(4, 6)
    assert _record(first_step=10, slow_from=None).steady_steps(0) == range(4)


def test_a_slowdown_from_before_a_plan_is_a_drift_that_its_prediction_ignores() -> None:
    record = _record(first_step=10, slow_from=13)
    assert not record.begins_slowed(0)
    assert record.begins_slowed(1)
    assert not _record(first_step=10, slow_from=None).begins_slowed(1)


def test_a_plan_made_for_a_corrected_device_knows_its_slowdown() -> None:
    record = _record(first_step=10, slow_from=13)
    layers = np.full(record.problem.profile.num_layers, 2.0)
    problem = corrected(record.problem, {("d0",): Factors(layers, layers, 1.0, 1.0)})
    knowing = replace(record.generations[1], problem=problem)
    known = replace(record, generations=[record.generations[0], knowing])
    assert not known.begins_slowed(1)


def test_steps_since_a_drift_that_was_recognised_do_not_count_either() -> None:
    assert _record(first_step=10, slow_from=None, drifts=[13]).steady_steps(0) == range(3)
    # Of what was never as predicted no step tells more than the others.
    assert _record(first_step=10, slow_from=None, drifts=[12]).steady_steps(0) == range(4)
    assert _record(first_step=10, slow_from=13, drifts=[12, 13]).steady_steps(1) == range(4, 6)


def test_the_median_leaves_out_warm_up_steps_where_there_are_others() -> None:
    record = _record(first_step=0, slow_from=None)
    assert record.median_step_time_s(0) == 2.0
    assert record.median_step_time_s(1) == 6.0
