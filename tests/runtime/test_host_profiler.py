"""Host times: the fit gives back what the simulator was told."""

from __future__ import annotations

import pytest

from heterps_configs.cluster import HostTimes, Link
from heterps_configs.model_profile import Measurement
from heterps_envs.simulator import simulate
from heterps_runtime.host_profiler import (
    FEW,
    MANY,
    MICRO_BATCH_SIZE,
    _plan,
    _problem,
    fitted_host_times,
)
from tests.runtime.small_runs import profile_of


def test_the_fit_finds_the_host_times_of_a_simulated_run() -> None:
    profile = profile_of("sequential")
    measurement = Measurement(
        device_type="host-cpu",
        micro_batch_size=MICRO_BATCH_SIZE,
        forward_s=(2e-5,) * profile.num_layers,
        backward_s=(3e-5,) * profile.num_layers,
        optimizer_s=(0.0,) * profile.num_layers,
    )
    profile = profile.model_copy(update={"measurements": (measurement,)})
    link = Link(latency_s=5e-5, bandwidth_bytes_per_s=1e9)
    truth = HostTimes(action_s=7e-5, step_s=3e-4)
    steps = {}
    for count in (FEW, MANY):
        problem = _problem(profile, link, truth, count)
        steps[count] = simulate(problem, _plan(problem)).step_time_s
    found = fitted_host_times(profile, link, steps, (1.0, 1.25))
    assert found.action_s == pytest.approx(truth.action_s, rel=1e-2)
    assert found.step_s == pytest.approx(truth.step_s, rel=2e-2)
    assert found.slowdown_together == (1.0, 1.25)
