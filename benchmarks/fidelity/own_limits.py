"""Random plans near a memory limit: predicted to fit, and whether they do.

For each plan one device gets a limit that is drawn within 15 % of the plan's predicted need of it.
What the device really needs is measured in one process that executes the plan's action lists.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks.fidelity.own_errors import measured_by_kind, predicted_largest, relative_error
from benchmarks.fidelity.own_models import Case
from benchmarks.fidelity.own_plans import HOST, cuts, emulated_cluster
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.job import Job, Optimizer, Schedule
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Pipeline, Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_runtime.execution.memory_check import peak_bytes
from heterps_runtime.profiling.profiler import Conditions, measure
from heterps_runtime.run.run_plan import run_plan

LIMIT_SHARE = 0.15
# Micro-batch sizes whose bytes are measured; a plan's may lie between them.
PROFILED_SIZES = (1, 2, 4)
SCHEDULES: tuple[Schedule, ...] = ("1f1b", "gpipe", "interleaved", "zero-bubble")
OPTIMIZERS: tuple[Optimizer, ...] = ("adamw", "sgd-momentum", "sgd")
DEVICES = ("d0", "d1", "d2", "d3")


@dataclass(frozen=True)
class LimitCase:
    """A plan and the limit of one of its devices.

    Attributes:
        estimate: What is predicted of it, memory curves included.
        device: Which one is limited.
        limit_bytes: Its limit.
    """

    problem: Problem
    plan: Plan
    estimate: Estimate
    device: str
    limit_bytes: int

    @property
    def need_bytes(self) -> Mapping[str, int]:
        """Predicted peak of every device."""
        return self.estimate.memory_bytes

    @property
    def predicted_to_fit(self) -> bool:
        """What the estimate says of the limited device."""
        return self.need_bytes[self.device] <= self.limit_bytes


def measured_profiles(cases: Iterable[Case]) -> list[ModelProfile]:
    """The models with the activation bytes that a profile measures."""
    return [measure(case.profile(), HOST, PROFILED_SIZES, Conditions(repeats=3)) for case in cases]


def draw_case(profiles: Sequence[ModelProfile], seed: int) -> LimitCase:
    """The random plan of a seed, and its limit."""
    generator = random.Random(seed)
    profile = generator.choice(profiles)
    job = _draw_job(generator)
    cluster = emulated_cluster(1.0)
    problem = Problem(profile, cluster, job)
    plan = draw_plan(problem, generator)
    predicted = estimate(problem, plan, with_memory=True)
    need = predicted.memory_bytes
    device = generator.choice(plan.devices)
    factor = 1 + generator.uniform(-LIMIT_SHARE, LIMIT_SHARE)
    return LimitCase(problem, plan, predicted, device, round(need[device] * factor))


def _draw_job(generator: random.Random) -> Job:
    size, count = generator.randint(1, 4), generator.randint(2, 10)
    rest = generator.randrange(size)  # of a smaller last micro-batch
    return Job(
        global_batch_size=size * count - rest,
        micro_batch_size=size,
        dtype="float32",
        optimizer=generator.choice(OPTIMIZERS),
        schedule=generator.choice(SCHEDULES),
    )


def draw_plan(problem: Problem, generator: random.Random) -> Plan:
    """One to three pipelines; those behind the first copy some of its stages or have their own.

    A chain may have several stages on one device; with the interleaved schedule it always has.
    """
    profile, job = problem.profile, problem.job
    devices = generator.sample(DEVICES, generator.randint(2, len(DEVICES)))
    rounds = 2 if job.schedule == "interleaved" else 1
    if job.schedule == "interleaved":
        devices = devices[: max(2, profile.num_layers // 2)]
    chain = _draw_chain(profile.num_layers, devices * rounds, generator, "p0")
    pipelines, stages = [tuple(stage.name for stage in chain)], {s.name: s for s in chain}
    most = 1 if job.schedule in ("interleaved", "zero-bubble") else 3
    wanted = min(generator.randint(1, most), job.num_micro_batches)
    for number in range(1, wanted):
        own = _draw_branch(profile.num_layers, chain, devices, generator, f"p{number}")
        stages.update({stage.name: stage for stage in own})
        pipelines.append(tuple(stage.name for stage in own))
    shares = _draw_shares(job.num_micro_batches, len(pipelines), generator)
    return Plan(
        model=profile.name,
        model_fingerprint=profile.layers_fingerprint(),
        num_layers=profile.num_layers,
        cluster=problem.cluster.name,
        job=job,
        stages=tuple(stages.values()),
        pipelines=tuple(
            Pipeline(stages=names, micro_batches=share)
            for names, share in zip(pipelines, shares, strict=True)
        ),
        planner="at random",
    )


def _draw_chain(
    num_layers: int, devices: Sequence[str], generator: random.Random, prefix: str
) -> list[Stage]:
    stops = cuts([generator.randint(1, 4) for _ in devices], num_layers)
    return [
        Stage(name=f"{prefix}s{index}", first_layer=first, last_layer=stop - 1, devices=(device,))
        for index, (first, stop, device) in enumerate(
            zip((0, *stops), stops, devices, strict=False)
        )
    ]


def _draw_branch(
    num_layers: int,
    chain: Sequence[Stage],
    devices: Sequence[str],
    generator: random.Random,
    prefix: str,
) -> list[Stage]:
    """Another route: shares some stages of the first, or is a pipeline of its own depth."""
    if generator.random() < 0.5:
        depth = generator.randint(1, len(devices))
        return _draw_chain(num_layers, generator.sample(devices, depth), generator, prefix)
    return [
        stage
        if generator.random() < 0.5
        else stage.changed(name=f"{prefix}{stage.name}", devices=(generator.choice(devices),))
        for stage in chain
    ]


def _draw_shares(
    num_micro_batches: int, num_pipelines: int, generator: random.Random
) -> list[tuple[int, ...]]:
    """At least one micro-batch for every pipeline."""
    order = list(range(num_micro_batches))
    generator.shuffle(order)
    shares = [[micro_batch] for micro_batch in order[:num_pipelines]]
    for micro_batch in order[num_pipelines:]:
        generator.choice(shares).append(micro_batch)
    return [tuple(sorted(share)) for share in shares]


def limit_row(case: LimitCase, seed: int) -> dict[str, Any]:
    """Predicted and measured need of the limited device."""
    measured = peak_bytes(case.problem.profile, case.plan, case.problem.cluster, seed=seed)
    found = measured[case.device].peak_bytes
    need = case.need_bytes[case.device]
    errors = {
        device: relative_error(case.need_bytes[device], report.peak_bytes)
        for device, report in measured.items()
    }
    return {
        "part": "memory limit",
        "seed": seed,
        "model": case.problem.profile.name,
        "plan": f"{len(case.plan.pipelines)} pipelines, {len(case.plan.stages)} stages",
        "schedule": case.problem.job.schedule,
        "limit_bytes": case.limit_bytes,
        "predicted_bytes": need,
        "measured_bytes": found,
        "memory_error": relative_error(need, found),
        "errors": errors,
        "memory": [
            {
                "device": curve.device,
                "predicted_largest": predicted_largest(curve),
                "measured_largest": measured_by_kind(measured[curve.device].largest),
            }
            for curve in case.estimate.memory_curves
        ],
        "predicted_to_fit": case.predicted_to_fit,
        "fits": found <= case.limit_bytes,
    }


def limited_cluster(cluster: Cluster, limits: Mapping[str, int]) -> Cluster:
    """The cluster with less memory on some devices."""
    nodes = tuple(
        node.changed(
            devices=tuple(
                group.changed(memory_bytes=limits.get(group.name)) for group in node.devices
            )
        )
        for node in cluster.nodes
    )
    return Cluster.model_validate(cluster.changed(nodes=nodes).model_dump())


def process_row(case: LimitCase, seed: int) -> dict[str, Any]:
    """The same plan under the real launcher with the limit set: does it run out of memory?"""
    cluster = limited_cluster(case.problem.cluster, {case.device: case.limit_bytes})
    problem = Problem(case.problem.profile, cluster, case.problem.job)
    message = ""
    try:
        run_plan(problem, case.plan, RunSettings(steps=2, seed=seed, timeout_s=120.0))
    except HeterpsError as error:
        message = str(error)
        if "out of memory" not in message:
            raise
    return {
        "part": "memory limit, processes",
        "seed": seed,
        "model": case.problem.profile.name,
        "schedule": case.problem.job.schedule,
        "limit_bytes": case.limit_bytes,
        "predicted_bytes": case.need_bytes[case.device],
        "predicted_to_fit": case.predicted_to_fit,
        "fits": not message,
        "message": message,
    }
