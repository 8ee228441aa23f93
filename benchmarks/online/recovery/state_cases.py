"""A model whose state is large and whose steps are short, its plans, and how to recover it twice.

The recovery is that of an elastic run. The restart is what a static job does: all processes start
again, on machines whose disks are empty, and each fetches its part from the remote storage.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from torch import nn

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.device import DeviceType
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.documents.stage import Stage
from heterps_envs.problem import Problem
from heterps_runtime.elastic.records import MembershipChange
from heterps_runtime.elastic.run_elastic import run_elastic
from heterps_runtime.profiling.model_source import factory_source
from heterps_runtime.results.changes import Recovery
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.tracing.trace import trace_source

HERE = "benchmarks.online.recovery.state_cases"
LAYERS = 21
WIDTH, QUICK_WIDTH = 2048, 640
DEVICES = ("d0", "d1", "d2", "d3")
JOB = Job(global_batch_size=8, micro_batch_size=2, dtype="float32", optimizer="adamw")
# The second save begins when the first one is complete: at the fault, there is a whole one.
SAVE_EVERY, LOST_STEP, STEPS = 3, 7, 9
LOST = "d3"
LIMIT_S = 300.0


class Case(NamedTuple):
    """A loss.

    Attributes:
        name: For the table.
        before: The plan that runs when the device is lost.
        after: The plan that the others go on with.
    """

    name: str
    before: Plan
    after: Plan


class _StopError(Exception):
    """Ends a run whose first step is all that counts."""


def large() -> nn.Sequential:
    """About 1 GB of parameters and optimizer state."""
    return _layers(WIDTH)


def smaller() -> nn.Sequential:
    """A tenth of that."""
    return _layers(QUICK_WIDTH)


@cache
def problem_of(quick: bool) -> Problem:
    """Four processes of this host; nothing is emulated."""
    name, width = ("smaller", QUICK_WIDTH) if quick else ("large", WIDTH)
    profile = trace_source(factory_source(f"{HERE}:{name}", [f"x={width}:float32"]), name)
    kind = DeviceType(
        name="process", kind="cpu", memory_bytes=8 * 10**9, peak_flops_per_s={"float32": 2e10},
        memory_bandwidth_bytes_per_s=5e9, price_usd_per_hour=1.0,
    )  # fmt: skip
    node = Node(
        name="node",
        devices=tuple(DeviceGroup(name=name, type=kind.name) for name in DEVICES),
        link=Link(latency_s=1e-4, bandwidth_bytes_per_s=1e9),
    )
    return Problem(profile, Cluster(name="four", device_types=(kind,), nodes=(node,)), JOB)


def state_bytes(profile: ModelProfile) -> int:
    """Parameters and both moments in float32."""
    return 12 * sum(layer.num_parameters for layer in profile.layers)


def cases(problem: Problem) -> list[Case]:
    """A lost layer that another device holds, too; and one that nobody else does."""
    left = [name for name in DEVICES if name != LOST]
    two_pipelines = _plan(problem, [("d0", "d1"), ("d2", "d3")])
    return [
        Case("a replica is alive", two_pipelines, _plan(problem, [left])),
        Case("no replica", _plan(problem, [DEVICES]), _plan(problem, [left])),
    ]


def recovered(problem: Problem, case: Case, folder: Path) -> Recovery:
    """Kills a device after a step; what came of it.

    Args:
        problem: Of the run.
        case: What is lost.
        folder: Its checkpoints; empty.
    """

    class Fixed:
        """Knows the answer."""

        def replan(self, change: MembershipChange) -> PlanUpdate:
            """The plan of the case."""
            return PlanUpdate(case.after, problem, reason=case.name)

    result = run_elastic(
        problem,
        case.before,
        RunSettings(
            steps=STEPS,
            checkpoint=CheckpointSettings(folder=str(folder), every=SAVE_EVERY),
            timeout_s=LIMIT_S,
        ),
        Fixed(),
        events=[RunEvent(step=LOST_STEP, lose=LOST)],
        hooks=RunHooks(on_message=lambda message: None),
    )
    (recovery,) = result.recoveries
    return recovery


def restarted_s(problem: Problem, plan: Plan, url: str | None, folder: Path | None = None) -> float:
    """Seconds from the start of all processes until the first step is done.

    Args:
        problem: Of the run.
        plan: That of the devices which are left.
        url: Of the remote storage.
        folder: Local checkpoints; None: none, all comes from the remote storage.
    """

    def stop(progress: StepProgress) -> None:
        raise _StopError

    with tempfile.TemporaryDirectory() as empty:
        settings = CheckpointSettings(folder=str(folder or empty), remote=url)
        began_s = time.perf_counter()
        try:
            run_plan(
                problem,
                plan,
                RunSettings(steps=1000, checkpoint=settings, resume=True, timeout_s=LIMIT_S),
                hooks=RunHooks(on_progress=stop, on_message=lambda message: None),
            )
        except _StopError:
            return time.perf_counter() - began_s
    raise AssertionError


def _layers(width: int) -> nn.Sequential:
    parts = [part for _ in range(LAYERS) for part in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(*parts[:-1])


def _plan(problem: Problem, chains: Sequence[Sequence[str]]) -> Plan:
    """Pipelines over devices; each device of a pipeline has equally many layers."""
    profile = problem.profile
    stages: list[Stage] = []
    routes: list[tuple[str, ...]] = []
    for number, devices in enumerate(chains):
        cuts = [round(i * profile.num_layers / len(devices)) for i in range(len(devices) + 1)]
        own = [
            Stage(name=f"p{number}-{device}", first_layer=a, last_layer=b - 1, devices=(device,))
            for device, (a, b) in zip(devices, pairwise(cuts), strict=True)
        ]
        stages += own
        routes.append(tuple(stage.name for stage in own))
    every = range(problem.job.num_micro_batches)
    return Plan(
        model=profile.name,
        model_fingerprint=profile.layers_fingerprint(),
        num_layers=profile.num_layers,
        cluster=problem.cluster.name,
        job=problem.job,
        stages=tuple(stages),
        pipelines=tuple(
            Pipeline(stages=route, micro_batches=tuple(every[number :: len(routes)]))
            for number, route in enumerate(routes)
        ),
        planner="by hand",
    )
