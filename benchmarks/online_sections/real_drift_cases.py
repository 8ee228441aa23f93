"""Emulated devices that are not as the planner believes, and runs on them."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.online_sections.drift_cases import KIND_SIGMA, LAYER_SIGMA
from benchmarks.runtime_models import source_of
from heterps.online import OnlineController
from heterps.placing import place
from heterps_agents.policy import Policy
from heterps_agents.ppo import DEFAULT_POLICY
from heterps_configs.job import Job
from heterps_configs.library import load_cluster
from heterps_configs.model_profile import Measurement, ModelProfile
from heterps_configs.plan import Plan
from heterps_envs.problem import Problem
from heterps_runtime.measurements import Measurements
from heterps_runtime.run import PlanUpdate, run_plan
from heterps_runtime.run_result import RunResult
from heterps_runtime.trace import trace_source

Floats = NDArray[np.float64]

MODEL, CLUSTER = "mlp", "local-emulated"
JOB = Job(global_batch_size=16, micro_batch_size=2, dtype="float32")
# Forward seconds of the mean layer on the slowest type: far beyond what this host needs for one,
# so that a busy host does not show.
LAYER_S = 5e-3
# The controller is told that so many steps remain; the runs are the beginning of such a training.
REMAINING_STEPS, MEASURE_EVERY = 2000, 4
ADAPTED_STEPS, KNOWING_STEPS = 48, 14
# Steps behind a change of the plan whose times are not counted.
SETTLING_STEPS = 3
LIMIT_S = 300.0


def believed_problem() -> Problem:
    """Four emulated devices of three types, of speeds 4, 2 and 1; layers of unequal times."""
    profile = trace_source(source_of(MODEL), MODEL, JOB.dtype)
    rng = np.random.default_rng(0)
    seconds = LAYER_S * np.exp(0.5 * rng.standard_normal(profile.num_layers))
    cluster = load_cluster(CLUSTER)
    names = dict.fromkeys(device.type.name for device in cluster.devices)
    speeds = {name: float(name.removeprefix("emulated-").removesuffix("x")) for name in names}
    measured = [_measurement(name, seconds / speed) for name, speed in speeds.items()]
    return Problem(_with(profile, measured), cluster, JOB)


def true_problem(believed: Problem, rng: np.random.Generator) -> Problem:
    """A factor for each device type, and one for each layer on it."""
    measured = []
    for entry in believed.profile.measurements:
        forward = np.array(entry.forward_s)
        factors = np.exp(
            KIND_SIGMA * rng.standard_normal() + LAYER_SIGMA * rng.standard_normal(len(forward))
        )
        measured.append(_measurement(entry.device_type, forward * factors))
    return replace(believed, profile=_with(believed.profile, measured))


def best_plan(problem: Problem) -> Plan:
    """The plan of one who believes the problem."""
    return place(problem, "exact").plan


def adapted_run(truth: Problem, believed: Problem, plan: Plan) -> tuple[RunResult, list[str]]:
    """Trains under the stale plan, with a controller that believes it; what it says beside that."""
    messages: list[str] = []
    with OnlineController(
        believed, plan, Policy.load(DEFAULT_POLICY), fine_tune_s=0, on_message=messages.append
    ) as watcher:

        def controller(measurements: Measurements) -> PlanUpdate | None:
            found = watcher.observe(
                measurements.step, REMAINING_STEPS, measurements.stage_measurements()
            )
            return None if found is None else PlanUpdate(found, watcher.problem)

        with tempfile.TemporaryDirectory() as folder:
            result = run_plan(
                truth, plan, steps=ADAPTED_STEPS, controller=controller,
                measure_every=MEASURE_EVERY, timeout_s=LIMIT_S, run_directory=Path(folder),
            )  # fmt: skip
    return result, messages


def knowing_step_time_s(truth: Problem, plan: Plan) -> float:
    """Measured seconds of a step under a plan that was made for the truth."""
    result = run_plan(truth, plan, steps=KNOWING_STEPS, timeout_s=LIMIT_S)
    return statistics.median(result.step_times_s[SETTLING_STEPS:])


def last_step_time_s(result: RunResult) -> float:
    """Of the steps under the last plan."""
    times = _times_of(result, result.generations[-1])
    return statistics.median(times[SETTLING_STEPS:] or times)


def first_step_time_s(result: RunResult) -> float:
    """Of the steps under the first plan."""
    times = _times_of(result, 0)
    return statistics.median(times[SETTLING_STEPS:] or times)


def _times_of(result: RunResult, generation: int) -> list[float]:
    pairs = zip(result.step_times_s, result.generations, strict=True)
    return [seconds for seconds, own in pairs if own == generation]


def _measurement(device_type: str, forward_s: Floats) -> Measurement:
    forward = tuple(forward_s.tolist())
    return Measurement(
        device_type=device_type,
        micro_batch_size=JOB.micro_batch_size,
        dtype=JOB.dtype,
        forward_s=forward,
        backward_s=tuple(2 * seconds for seconds in forward),
        optimizer_s=tuple(0.1 * seconds for seconds in forward),
    )


def _with(profile: ModelProfile, measurements: Sequence[Measurement]) -> ModelProfile:
    return profile.model_copy(update={"measurements": tuple(measurements)})
