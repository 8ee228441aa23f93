"""Plans under torch's own schedules: the same training as in one process and under the executor."""

from __future__ import annotations

import pytest

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.job import Schedule
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.run.hooks import RunHooks
from heterps_runtime.run.run_plan import run_plan
from tests.runtime.small_runs import plan_of, problem_of

HALVES = {"front": (0, 3, "d1"), "back": (4, -1, "d0")}
QUARTERS = {
    "s0": (0, 1, "d0"),
    "s1": (2, 3, "d1"),
    "s2": (4, 5, "d0"),
    "s3": (6, -1, "d1"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "schedule", "stages", "dtype"),
    [
        ("dropping", "1f1b", {"front": (0, 2, "d1"), "back": (3, -1, "d0")}, "float32"),
        ("sequential", "zero-bubble", HALVES, "float32"),
        ("sequential", "interleaved", QUARTERS, "float32"),
        ("sequential", "gpipe", HALVES, "float16"),
    ],
)
def test_torchs_schedules_train_as_one_process_does(
    model: str, schedule: Schedule, stages: dict[str, tuple[int, int, str]], dtype: Dtype
) -> None:
    problem = problem_of(model, schedule=schedule, dtype=dtype)
    plan = plan_of(problem, stages)
    result = run_plan(
        problem, plan, RunSettings(steps=3, verify=True, engine="torch", timeout_s=120)
    )
    assert result.max_loss_difference is not None
    assert result.max_loss_difference < 1e-6
    assert result.times_of == "this host"


@pytest.mark.slow
def test_emulated_devices_run_at_the_speed_of_this_host_with_a_remark() -> None:
    problem = problem_of("sequential", slowdowns=(4.0,) * 4, schedule="gpipe")
    remarks: list[str] = []
    result = run_plan(
        problem,
        plan_of(problem, HALVES),
        RunSettings(steps=2, engine="torch", timeout_s=120),
        hooks=RunHooks(on_message=remarks.append),
    )
    assert remarks == ["engine torch: nothing is emulated; the run has the speed of this host"]
    assert result.times_of == "this host"
    assert not result.has_comparable_times


def test_a_plan_with_routes_is_refused_before_anything_starts() -> None:
    problem = problem_of("sequential")
    stages = {**HALVES, "other": (4, -1, "d2")}
    plan = plan_of(problem, stages, {("front", "back"): (0, 1), ("front", "other"): (2, 3)})
    with pytest.raises(HeterpsError, match="cannot express this plan"):
        run_plan(problem, plan, RunSettings(steps=1, engine="torch"))
