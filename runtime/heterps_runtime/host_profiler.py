"""Host time of an action and of a step: what tiny pipelines take beyond their layers and messages.

Two stages of next to no work run through the real executor, with few and with many micro-batches.
The seconds of their passes are known from the run itself, those of the messages from the link; the
host time of an action is what makes the simulator's difference between both runs the measured one,
that of a step what is left of the shorter run.
"""

from __future__ import annotations

from heterps_configs.cluster import Cluster, DeviceGroup, HostTimes, Link, Node
from heterps_configs.job import Job
from heterps_configs.model_profile import Measurement, ModelProfile
from heterps_configs.plan import Pipeline, Plan, Stage
from heterps_envs.problem import Problem
from heterps_envs.simulator import simulate
from heterps_runtime.model_source import factory_source
from heterps_runtime.run import run_plan
from heterps_runtime.run_result import RunResult
from heterps_runtime.trace import trace_source

NUM_STEPS, TIMEOUT_S = 40, 120.0
# Micro-batches of the short and of the long run.
FEW, MANY = 4, 24
MICRO_BATCH_SIZE = 4
HALVINGS = 30


def measure_host_times(link: Link, slowdown_together: tuple[float, ...] = ()) -> HostTimes:
    """Runs both pipelines on two processes; about fifteen seconds.

    Args:
        link: Between two processes of this host.
        slowdown_together: Kept in the result.

    Raises:
        HeterpsError: A run failed.
    """
    source = factory_source(
        "heterps_runtime.examples.sequential:tiny_perceptron", ["x=16:float32", "target=:int64<4"]
    )
    profile = trace_source(source, "tiny-perceptron")
    runs = {}
    for num_micro_batches in (FEW, MANY):
        problem = _problem(profile, link, HostTimes(), num_micro_batches)
        runs[num_micro_batches] = run_plan(
            problem, _plan(problem), steps=NUM_STEPS, timeout_s=TIMEOUT_S
        )
    measured = _with_times(profile, runs[MANY])
    return fitted_host_times(
        measured,
        link,
        {count: run.measured_step_time_s for count, run in runs.items()},
        slowdown_together,
    )


def fitted_host_times(
    profile: ModelProfile,
    link: Link,
    step_times_s: dict[int, float],
    slowdown_together: tuple[float, ...] = (),
) -> HostTimes:
    """The host times under which the simulator takes the measured step times.

    Args:
        profile: Of two halves, measured in the running pipeline.
        link: Between both processes.
        step_times_s: By number of micro-batches: `FEW` and `MANY`.
        slowdown_together: Kept in the result; the measured passes hold it already.
    """

    def simulated_s(count: int, action_s: float) -> float:
        problem = _problem(profile, link, HostTimes(action_s=action_s), count)
        return simulate(problem, _plan(problem)).step_time_s

    wanted_s = step_times_s[MANY] - step_times_s[FEW]
    low, high = 0.0, max(wanted_s, 0.0) / (MANY - FEW)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if simulated_s(MANY, middle) - simulated_s(FEW, middle) < wanted_s:
            low = middle
        else:
            high = middle
    action_s = float(f"{high:.4g}")
    step_s = max(step_times_s[FEW] - simulated_s(FEW, action_s), 0.0)
    return HostTimes(
        action_s=action_s, step_s=float(f"{step_s:.4g}"), slowdown_together=slowdown_together
    )


def _problem(profile: ModelProfile, link: Link, host: HostTimes, count: int) -> Problem:
    layers = profile.num_layers
    if not profile.measurements:
        # Orders the action lists only.
        guess = Measurement(
            device_type="host-cpu", micro_batch_size=MICRO_BATCH_SIZE,
            forward_s=(1e-4,) * layers, backward_s=(1e-4,) * layers, optimizer_s=(0.0,) * layers,
        )  # fmt: skip
        profile = profile.model_copy(update={"measurements": (guess,)})
    node = Node(
        name="this-machine",
        devices=(DeviceGroup(name="process", type="host-cpu", count=2),),
        link=link,
        host=host,
    )
    job = Job(
        global_batch_size=MICRO_BATCH_SIZE * count,
        micro_batch_size=MICRO_BATCH_SIZE,
        dtype="float32",
    )
    return Problem(profile=profile, cluster=Cluster(name="two", nodes=(node,)), job=job)


def _plan(problem: Problem) -> Plan:
    layers = problem.profile.num_layers
    half = layers // 2
    spans = {"front": (0, half - 1, "process-0"), "back": (half, layers - 1, "process-1")}
    return Plan(
        model=problem.profile.name,
        model_fingerprint=problem.profile.layers_fingerprint(),
        num_layers=layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=tuple(
            Stage(name=name, first_layer=first, last_layer=last, devices=(device,))
            for name, (first, last, device) in spans.items()
        ),
        pipelines=(
            Pipeline(
                stages=tuple(spans), micro_batches=tuple(range(problem.job.num_micro_batches))
            ),
        ),
        planner="host times",
    )


def _with_times(profile: ModelProfile, run: RunResult) -> ModelProfile:
    """The profile with the medians of a run: a stage's seconds in its first layer."""
    seconds = {field: [0.0] * profile.num_layers for field in ("forward_s", "backward_s")}
    for stage in run.stages:
        for field, values in seconds.items():
            values[stage.first_layer] = getattr(stage, field)
    measurement = Measurement(
        device_type="host-cpu",
        micro_batch_size=MICRO_BATCH_SIZE,
        forward_s=tuple(seconds["forward_s"]),
        backward_s=tuple(seconds["backward_s"]),
        # The step of two tiny stages is all host time.
        optimizer_s=(0.0,) * profile.num_layers,
    )
    return profile.model_copy(update={"measurements": (measurement,)})
