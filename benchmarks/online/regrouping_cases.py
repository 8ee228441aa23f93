"""A run in tensor-parallel groups one of whose devices becomes slower, and is regrouped."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from torch import nn

from benchmarks.online.recovery.injection_cases import Block
from heterps.online.controller import OnlineController
from heterps.online.process import Search
from heterps.online.search import SearchTask
from heterps_agents.learned.planner import DEFAULT_POLICY
from heterps_agents.learned.policy import Policy
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType, Emulation
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import OnlineSettings, RunSettings
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.results.measurements import Measurements
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.tracing.trace import trace_source

DEVICES = ("d0", "d1", "d2", "d3")
SLOW = "d3"
# Seconds of one micro-batch through the whole model on one device, forward and backward: far beyond
# what this host needs for it, so that a busy host does not show.
PASS_S = 0.5
NUM_BLOCKS, NUM_MICRO_BATCHES = 12, 8
# What a pass takes on a group of so many devices over what it takes on one.
GROUP_PARTS = {1: 1.0, 2: 0.52}
# Room for five layers on one device, and not for all on two: so there is a chain, of groups.
MEMORY_BYTES = 3 * 10**6
# Of a training whose beginning is run.
REMAINING_STEPS = 2000
# The device becomes slow at this step; measurements come every so many.
SLOW_STEP, MEASURE_EVERY = 9, 3
# Steps after a change whose times are not counted; a run has settled after so many under a plan.
SETTLING_STEPS, SETTLED_STEPS, MOST_STEPS = 3, 10, 400
LIMIT_S = 900.0


def blocks() -> nn.Sequential:
    """Layers that are alike, and that groups split."""
    return nn.Sequential(*(Block() for _ in range(NUM_BLOCKS)))


def problem(pass_s: float = PASS_S, num_micro_batches: int = NUM_MICRO_BATCHES) -> Problem:
    """Four equal emulated devices on one node.

    Args:
        pass_s: Seconds of a micro-batch through the whole model on one of them.
        num_micro_batches: Of a step.
    """
    source = factory_source(f"{__name__}:blocks", ["x=64:float32"])
    times = [
        Measurement(
            device_type="host-cpu",
            tensor_parallel=degree,
            micro_batch_size=2,
            forward_s=(part * pass_s / 3 / NUM_BLOCKS,) * NUM_BLOCKS,
            backward_s=(2 * part * pass_s / 3 / NUM_BLOCKS,) * NUM_BLOCKS,
            optimizer_s=(1e-4 * part,) * NUM_BLOCKS,
        )
        for degree, part in GROUP_PARTS.items()
    ]
    profile: ModelProfile = trace_source(source, "blocks").changed(measurements=times)
    kind = DeviceType(
        name="emulated",
        kind="cpu",
        memory_bytes=MEMORY_BYTES,
        peak_flops_per_s={"float32": 1e10},
        memory_bandwidth_bytes_per_s=1e10,
        price_usd_per_hour=1.0,
        emulation=Emulation(host_device_type="host-cpu", slowdown=1.0),
    )
    node = Node(
        name="node",
        devices=tuple(DeviceGroup(name=name, type=kind.name) for name in DEVICES),
        link=Link(latency_s=1e-5, bandwidth_bytes_per_s=1e9),
    )
    return Problem(
        profile,
        Cluster(name="four", device_types=(kind,), nodes=(node,)),
        Job(global_batch_size=2 * num_micro_batches, micro_batch_size=2, dtype="float32"),
    )


def two_groups(of: Problem) -> Plan:
    """Two stages, each on two devices."""
    half = NUM_BLOCKS // 2
    spans = {"s0": (0, half - 1, DEVICES[:2]), "s1": (half, NUM_BLOCKS - 1, DEVICES[2:])}
    return Plan(
        model=of.profile.name,
        model_fingerprint=of.profile.layers_fingerprint(),
        num_layers=NUM_BLOCKS,
        cluster=of.cluster.name,
        job=of.job,
        stages=tuple(
            Stage(name=name, first_layer=first, last_layer=last, devices=devices)
            for name, (first, last, devices) in spans.items()
        ),
        pipelines=(
            Pipeline(stages=tuple(spans), micro_batches=tuple(range(of.job.num_micro_batches))),
        ),
        planner="by hand",
    )


class _SettledError(Exception):
    """Enough was seen of a run."""


@dataclass
class Regrouped:
    """What a run came to; it ends when it has settled.

    Attributes:
        watcher: Its controller.
        plans: All that ran, the first first.
        messages: What the controller said.
        losses: Of each step.
        step_times_s: Of each step.
        generations: The number of the plan of each step.
        remarks: What the run said, its moves among it.
    """

    watcher: OnlineController
    plans: list[Plan]
    messages: list[str]
    losses: list[float] = field(default_factory=list)
    step_times_s: list[float] = field(default_factory=list)
    generations: list[int] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)

    def control(self, measurements: Measurements) -> PlanUpdate | None:
        """What `heterps run --online` does with measurements."""
        found = self.watcher.observe(
            measurements.step, REMAINING_STEPS, measurements.stage_measurements()
        )
        if found is None:
            return None
        self.plans.append(found)
        return PlanUpdate(found, self.watcher.problem)

    def take(self, progress: StepProgress) -> None:
        """Keeps the figures of a step."""
        self.losses.append(progress.loss)
        self.step_times_s.append(progress.step_time_s)
        self.generations.append(progress.generation)
        under_this = self.generations.count(progress.generation)
        if progress.generation and under_this == SETTLED_STEPS and not self.watcher.is_searching:
            raise _SettledError

    def before_s(self) -> float:
        """Median step before the device became slower."""
        return statistics.median(self.step_times_s[SETTLING_STEPS:SLOW_STEP])

    def during_s(self) -> float:
        """The same while it was slow, under the plan before the last one."""
        return statistics.median(self.step_times_s[SLOW_STEP : self.first_step])

    def after_s(self) -> float:
        """The same under the last plan."""
        return statistics.median(self.step_times_s[self.first_step + SETTLING_STEPS :])

    @property
    def first_step(self) -> int:
        """Under the last plan."""
        return self.generations.index(self.generations[-1])


def regrouped_run(
    of: Problem,
    plan: Plan,
    factor: float,
    start_search: Callable[[SearchTask], Search] | None = None,
) -> Regrouped:
    """Trains under a plan, with the controller of `heterps run --online`, until it has settled.

    Args:
        of: The problem.
        plan: What runs at first.
        factor: By which `SLOW` becomes slower at step `SLOW_STEP`.
        start_search: By default searches are in the background.
    """
    messages: list[str] = []
    settings = OnlineSettings(fine_tune_s=0, measure_every=MEASURE_EVERY)
    with OnlineController(
        of,
        plan,
        Policy.load(DEFAULT_POLICY),
        settings,
        on_message=messages.append,
        start_search=start_search,
    ) as watcher:
        found = Regrouped(watcher, [plan], messages)
        with suppress(_SettledError):
            run_plan(
                of,
                plan,
                RunSettings(steps=MOST_STEPS, timeout_s=LIMIT_S, online=settings),
                events=(RunEvent(step=SLOW_STEP, slow=SLOW, factor=factor),),
                hooks=RunHooks(
                    controller=found.control,
                    on_progress=found.take,
                    on_message=found.remarks.append,
                ),
            )
    return found


def undisturbed_losses(of: Problem, plan: Plan, steps: int) -> Sequence[float]:
    """Of the same run, without any event."""
    return run_plan(of, plan, RunSettings(steps=steps, timeout_s=LIMIT_S)).losses
