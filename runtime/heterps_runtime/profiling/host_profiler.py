"""Host times of a pass, a message and a step, taken between the actions of a running pipeline.

Four stages on two processes, two on each, compute all the time, so that no host work hides behind
waiting. A process records when each action began and ended; what lies between two actions is host
time: after a pass, after a message that was sent, around one that had already arrived.
"""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from heterps_configs.documents.cluster import Cluster, DeviceGroup, HostTimes, Link, Node
from heterps_configs.documents.estimate import TimelineEvent
from heterps_configs.documents.job import Job, Optimizer
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.results.phases import WARM_UP_STEPS
from heterps_runtime.results.result import RunResult
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.tracing.trace import trace_source

# Steps of a run after the warm-up, of which the actions are kept.
NUM_RUNS, NUM_STEPS, TIMEOUT_S = 3, 20, 120.0
NUM_MICRO_BATCHES, MICRO_BATCH_SIZE = 32, 16
NUM_STAGES = 4
PASSES = ("forward", "backward")


def measure_host_times(
    link: Link,
    slowdown_together: tuple[float, ...] = (),
    optimizer_slowdown_together: Mapping[Optimizer, tuple[float, ...]] | None = None,
    progress: Callable[[int, int, str], None] = lambda done, total, text: None,
) -> HostTimes:
    """Runs the pipeline three times on two processes; about twenty seconds.

    Args:
        link: Between two processes of this host.
        slowdown_together: Kept in the result.
        optimizer_slowdown_together: The same.
        progress: Called with (runs done, runs, what is next) before each run, and at the end.

    Raises:
        HeterpsError: A run failed.
    """
    source = factory_source(
        "heterps_runtime.examples.sequential:perceptron", ["x=64:float32", "target=:int64<10"]
    )
    problem = _problem(trace_source(source, "perceptron"), link)
    plan = _plan(problem)
    settings = RunSettings(
        steps=WARM_UP_STEPS + NUM_STEPS, timeout_s=TIMEOUT_S, num_timelines=NUM_STEPS
    )
    found = []
    for number in range(NUM_RUNS):
        progress(number, NUM_RUNS, "a pipeline on two processes")
        found.append(host_times(run_plan(problem, plan, settings)))
    progress(NUM_RUNS, NUM_RUNS, "")
    medians = {
        field: float(f"{statistics.median(getattr(entry, field) for entry in found):.4g}")
        for field in ("action_s", "send_s", "receive_s", "step_s")
    }
    return HostTimes(
        **medians,
        slowdown_together=slowdown_together,
        optimizer_slowdown_together=optimizer_slowdown_together or {},
    )


def host_times(run: RunResult) -> HostTimes:
    """The host times of a run, medians over the actions of all steps that it has timelines of.

    A step's: from its beginning to the first action, and from the last action to its end.
    """
    behind_passes, sent, received, beside = [], [], [], []
    timelines = [*run.earlier_timelines, run.timeline]
    for timeline, step_time_s in zip(timelines, run.step_times_s[-len(timelines) :], strict=True):
        by_device = defaultdict[str, list[TimelineEvent]](list)
        for event in timeline:
            by_device[event.device].append(event)
        for events in by_device.values():
            for event, after in pairwise(events):
                gap_s = max(after.start_s - event.end_s, 0.0)
                if event.action in PASSES:
                    behind_passes.append(gap_s)
                elif event.action == "send":
                    sent.append(gap_s)
                elif event.action == "receive":
                    received.append(event.end_s - event.start_s + gap_s)
        first_s = min(events[0].start_s for events in by_device.values())
        last_s = max(events[-1].end_s for events in by_device.values())
        beside.append(first_s + max(step_time_s - last_s, 0.0))
    return HostTimes(
        action_s=statistics.median(behind_passes),
        send_s=statistics.median(sent),
        receive_s=_without_waiting(received),
        step_s=statistics.median(beside),
    )


def _without_waiting(seconds: Sequence[float]) -> float:
    """The lower quartile: these messages had arrived when the process asked for them."""
    return statistics.quantiles(seconds, n=4, method="inclusive")[0]


def _problem(profile: ModelProfile, link: Link) -> Problem:
    layers = profile.num_layers
    # Orders the action lists only.
    guess = Measurement(
        device_type="host-cpu", micro_batch_size=MICRO_BATCH_SIZE,
        forward_s=(1e-4,) * layers, backward_s=(1e-4,) * layers, optimizer_s=(0.0,) * layers,
    )  # fmt: skip
    node = Node(
        name="this-machine",
        devices=(DeviceGroup(name="process", type="host-cpu", count=2),),
        link=link,
    )
    job = Job(
        global_batch_size=MICRO_BATCH_SIZE * NUM_MICRO_BATCHES,
        micro_batch_size=MICRO_BATCH_SIZE,
        dtype="float32",
    )
    return Problem(
        profile=profile.changed(measurements=(guess,)),
        cluster=Cluster(name="two", nodes=(node,)),
        job=job,
    )


def _plan(problem: Problem) -> Plan:
    layers = problem.profile.num_layers
    stops = [layers * (number + 1) // NUM_STAGES for number in range(NUM_STAGES)]
    stages = tuple(
        Stage(
            name=f"s{number}",
            first_layer=first,
            last_layer=stop - 1,
            devices=(f"process-{number % 2}",),
        )
        for number, (first, stop) in enumerate(zip([0, *stops], stops, strict=False))
    )
    return Plan(
        model=problem.profile.name,
        model_fingerprint=problem.profile.layers_fingerprint(),
        num_layers=layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=stages,
        pipelines=(
            Pipeline(
                stages=tuple(stage.name for stage in stages),
                micro_batches=tuple(range(problem.job.num_micro_batches)),
            ),
        ),
        planner="host times",
    )
