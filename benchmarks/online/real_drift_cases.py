"""Emulated devices that are not as the planner believes, and runs on them."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np

from benchmarks.online.drift_cases import KIND_SIGMA, LAYER_SIGMA
from benchmarks.runtime.models import source_of
from heterps.online.controller import OnlineController
from heterps.planning.place import place
from heterps_agents.learned.planner import DEFAULT_POLICY
from heterps_agents.learned.policy import Policy
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import OnlineSettings, RunSettings
from heterps_configs.library import load_cluster
from heterps_envs.arrays import Floats
from heterps_envs.problem import Problem
from heterps_runtime.results.measurements import Measurements
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.tracing.trace import trace_source

MODEL, CLUSTER = "mlp", "local-emulated"
JOB = Job(global_batch_size=16, micro_batch_size=2, dtype="float32")
# Forward seconds of the mean layer on the slowest type: far beyond what this host needs for one,
# so that a busy host does not show.
LAYER_S = 5e-3
# The controller is told that so many steps remain; the runs are the beginning of such a training.
REMAINING_STEPS, MEASURE_EVERY = 2000, 4
# A run has settled after so many steps under one plan without a search.
SETTLED_STEPS, MOST_STEPS = 16, 400
# Steps after a change of the plan whose times are not counted.
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


class _SettledError(Exception):
    """Enough was seen of a run."""


@dataclass
class _Steps:
    """Seconds of the steps of a run, by plan; it is ended when it has settled."""

    watcher: OnlineController
    seconds: list[list[float]] = field(default_factory=list)
    step: int = 0

    def __call__(self, progress: StepProgress) -> None:
        while len(self.seconds) <= progress.generation:
            self.seconds.append([])
        self.seconds[progress.generation].append(progress.step_time_s)
        self.step = progress.step
        adopted = sum(decision.adopted for decision in self.watcher.decisions)
        runs_newest = len(self.seconds) == adopted + 1
        is_quiet = len(self.seconds[-1]) >= SETTLED_STEPS and not self.watcher.is_searching
        if runs_newest and is_quiet:
            raise _SettledError


class AdaptedRun(NamedTuple):
    """What a run with a controller came to.

    Attributes:
        first_step_s: Median of measured steps under the first plan.
        last_step_s: The same under the last one.
        plan: The last one.
        num_plans: How many plans ran.
        num_steps: How many steps it took in all.
        messages: What the controller said.
    """

    first_step_s: float
    last_step_s: float
    plan: Plan
    num_plans: int
    num_steps: int
    messages: list[str]


def adapted_run(truth: Problem, believed: Problem, plan: Plan) -> AdaptedRun:
    """Trains under the stale plan, with a controller that believes it, until it has settled."""
    messages: list[str] = []
    with OnlineController(
        believed,
        plan,
        Policy.load(DEFAULT_POLICY),
        OnlineSettings(fine_tune_s=0),
        on_message=messages.append,
    ) as watcher:
        steps = _Steps(watcher)

        def controller(measurements: Measurements) -> PlanUpdate | None:
            found = watcher.observe(
                measurements.step, REMAINING_STEPS, measurements.stage_measurements()
            )
            return None if found is None else PlanUpdate(found, watcher.problem)

        with suppress(_SettledError):
            run_plan(
                truth,
                plan,
                RunSettings(
                    steps=MOST_STEPS,
                    timeout_s=LIMIT_S,
                    online=OnlineSettings(measure_every=MEASURE_EVERY),
                ),
                hooks=RunHooks(controller=controller, on_progress=steps),
            )
    first, last = (
        statistics.median(own[SETTLING_STEPS:]) for own in (steps.seconds[0], steps.seconds[-1])
    )
    return AdaptedRun(first, last, watcher.plan, len(steps.seconds), steps.step + 1, messages)


def knowing_step_time_s(truth: Problem, plan: Plan) -> float:
    """Measured seconds of a step under a plan that was made for the truth."""
    result = run_plan(truth, plan, RunSettings(steps=SETTLED_STEPS, timeout_s=LIMIT_S))
    return statistics.median(result.step_times_s[SETTLING_STEPS:])


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
    return profile.changed(measurements=tuple(measurements))
