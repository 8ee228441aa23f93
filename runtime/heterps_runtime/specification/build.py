"""From a problem and a plan to a run specification: action lists, ranks, emulated times."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError, PlanMismatchError
from heterps_envs.closed_form.placement import check_plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_envs.schedule.plan_arrays import state_parts
from heterps_envs.schedule.reduce_buckets import reduce_s
from heterps_envs.schedule.workload import Workload, own_share, workload
from heterps_runtime.models.trust import check_trusted
from heterps_runtime.specification.devices import torch_devices
from heterps_runtime.specification.groups import actions_of_members, check_groups
from heterps_runtime.specification.run import (
    EmulatedDevice,
    EmulatedLink,
    Emulation,
    RunSpecification,
)
from heterps_runtime.tensor_parallel.batch_call import BatchCall
from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit


def check_runnable(problem: Problem, plan: Plan, events: Sequence[RunEvent] = ()) -> None:
    """Refuses what cannot be run.

    Raises:
        PlanMismatchError: The plan was made for another model, cluster or job.
        HeterpsError: The model cannot be built, the plan has replicas in unlike groups, or an
            event slows a device or link that is not emulated.
    """
    check_plan(problem, plan)
    check_groups(problem.profile, plan)
    if plan.job != problem.job:
        raise PlanMismatchError(
            f"the plan was made for another job than the problem's: {_differences(problem, plan)}"
        )
    if problem.profile.source is None:
        raise HeterpsError(
            f"the model profile {problem.profile.name!r} has no 'source': the processes of a run "
            "cannot build the model; plan it by the name of its function (module:function)"
        )
    for event in events:
        if event.slow is not None:
            check_slowdown(problem, plan, event)


def _differences(problem: Problem, plan: Plan) -> str:
    """The fields of a job that differ."""
    planned, asked = plan.job, problem.job
    return "; ".join(
        f"{name}: {getattr(planned, name)} in the plan, {getattr(asked, name)} in the problem"
        for name in type(planned).model_fields
        if getattr(planned, name) != getattr(asked, name)
    )


def check_slowdown(problem: Problem, plan: Plan, slowdown: RunEvent) -> None:
    """Refuses to slow down what is not emulated, or is no link.

    Raises:
        HeterpsError: With what can be slowed down.
    """
    emulated = [d.name for d in problem.cluster.devices if d.type.emulation is not None]
    if slowdown.link is None:
        if slowdown.subject not in emulated:
            raise HeterpsError(
                f"only an emulated device can be slowed down, and {slowdown.subject!r} is none; "
                f"allowed: {', '.join(emulated) or 'none in this cluster'}"
            )
        return
    source, destination = slowdown.link
    unknown = [name for name in slowdown.link if name not in problem.device_named]
    if unknown or source == destination:
        raise HeterpsError(
            f"a link leads from one device to another, and {source}->{destination} does not; "
            f"devices of this cluster: {', '.join(problem.device_named)}"
        )
    if not set(emulated) & set(plan.devices):
        raise HeterpsError(
            f"only links of emulated devices can be slowed down, and the plan uses none: "
            f"{source}->{destination}"
        )


def check_importable(problem: Problem) -> None:
    """Refuses a model that only this process can build: the workers of a run are others.

    Raises:
        UntrustedCodeError: A document names its factory, and nobody has said that it may run.
        HeterpsError: Its factory is a local function or one of the program itself.
    """
    source = problem.profile.source
    factory = (source and source.factory) or ""
    if "#" in factory or factory.startswith("__main__:"):
        raise HeterpsError(
            f"the model's factory {factory!r} is known to this process only, and the workers of a "
            "run are processes of their own; name it as `package.module:function`"
        )
    if factory:
        check_trusted(factory)


def emulation_of(problem: Problem, plan: Plan, schedule: Schedule) -> Emulation | None:
    """What the plan's emulated devices and links should take; None where no device is emulated."""
    # Idle devices, too: they may join under a later plan.
    emulated = [d.name for d in problem.cluster.devices if d.type.emulation is not None]
    if not set(emulated) & set(plan.devices):
        return None
    work = workload(problem, plan)
    return Emulation(
        devices=tuple(_emulated_device(problem, plan, work, name) for name in emulated),
        links=tuple(
            EmulatedLink(
                source=source,
                destination=destination,
                latency_s=problem.link(source, destination).latency_s,
                s_per_byte=1 / problem.link(source, destination).bandwidth_bytes_per_s,
            )
            for source in plan.devices
            for destination in plan.devices
            if source != destination
        ),
        reduce_s=tuple(reduce_s(problem, bucket) for bucket in schedule.buckets),
    )


def _emulated_device(problem: Problem, plan: Plan, work: Workload, name: str) -> EmulatedDevice:
    stages = [stage for stage in plan.stages if name in stage.devices]
    micro_batches = range(plan.job.num_micro_batches)
    return EmulatedDevice(
        device=name,
        forward_s={
            stage.name: tuple(work.seconds("forward", stage.name, m) for m in micro_batches)
            for stage in stages
        },
        backward_s={
            stage.name: tuple(work.seconds("backward", stage.name, m) for m in micro_batches)
            for stage in stages
        },
        weight_gradient_s={
            stage.name: tuple(work.seconds("backward-weight", stage.name, m) for m in micro_batches)
            for stage in stages
        },
        optimizer_s=_optimizer_s(problem, plan, stages, name),
        memory_bytes=problem.device_named[name].memory_bytes,
        own_share=own_share(problem, stages[0], name) if stages else 1.0,
    )


def _optimizer_s(problem: Problem, plan: Plan, stages: Sequence[Stage], name: str) -> float:
    """Of a device, for what it steps of its stages: a part, where replicas share the state."""
    kind, parts, total = problem.class_of[name], state_parts(plan), 0.0
    for stage in stages:
        layers = list(stage.layers)
        own = problem.for_stage(stage, stage.devices.index(name)).tables.optimizer_s[layers, kind]
        total += float((own / parts[layers]).sum())
    return total


def build_specification(
    problem: Problem,
    plan: Plan,
    schedule: Schedule,
    settings: RunSettings,
    *,
    devices: Sequence[str],
    events: Sequence[RunEvent] = (),
    is_online: bool = False,
) -> RunSpecification:
    """The first specification of a run from its beginning.

    Args:
        problem: Its layer times and links are what emulated devices should take.
        plan: What runs.
        schedule: The plan's action lists.
        settings: Without what they start from (`heterps_runtime.run.starting_point`).
        devices: Names by rank; at least the plan's.
        events: Of them, what slows devices and links down.
        is_online: Measurements are published, new plans looked for.
    """
    return RunSpecification(
        devices=tuple(devices),
        profile=problem.profile.changed(measurements=()),
        plan=plan,
        actions=actions_of_members(plan, schedule.actions),
        buckets=schedule.buckets,
        overlaps_reduce=schedule.overlaps_reduce,
        num_steps=settings.steps,
        seed=settings.seed,
        learning_rate=settings.learning_rate,
        max_gradient_norm=settings.max_gradient_norm,
        emulation=emulation_of(problem, plan, schedule),
        slowdowns=tuple(event for event in events if event.slow is not None),
        is_online=is_online,
        measure_every=settings.online.measure_every,
        num_threads=settings.num_threads,
        device=settings.device,
        engine=settings.engine,
        num_timelines=settings.num_timelines,
        measures_links=settings.measures_links,
        splits=_splits(problem, plan),
        batch_calls=_batch_calls(problem, plan),
    )


def _splits(problem: Problem, plan: Plan) -> dict[str, ParameterSplit]:
    """How the plan's groups split parameters; found once for all ranks.

    Raises:
        HeterpsError: A layer cannot be run on a group as the cost model counts it.
    """
    degree = max(stage.degree for stage in plan.stages)
    if degree == 1:
        return {}
    # Most runs have no groups: they need no tracing.
    from heterps_runtime.tensor_parallel.found_splits import why_not
    from heterps_runtime.tensor_parallel.plan import find_splits

    assert problem.profile.source is not None
    found = find_splits(problem.profile.source, plan.job.dtype)
    for stage in plan.stages:
        reason = why_not(problem.profile, found, stage)
        if reason is not None:
            raise HeterpsError(
                f"{reason}; the group of stage {stage.name!r} cannot run it: place it with "
                f"--tensor-parallel 1, or name the layer in the stage's whole_layers"
            )
    return found.as_counted(problem.profile)


def _batch_calls(problem: Problem, plan: Plan) -> tuple[BatchCall, ...]:
    """What of the model's calls belongs to samples, where groups split some layers by batch.

    Raises:
        HeterpsError: A layer cannot be split so.
    """
    if not any(stage.batch_layers for stage in plan.stages):
        return ()
    from heterps_runtime.tensor_parallel.by_batch import find_batch_calls, why_not_by_batch

    assert problem.profile.source is not None
    found = find_batch_calls(problem.profile.source, plan.job.dtype)
    for stage in plan.stages:
        reason = why_not_by_batch(problem.profile, found, stage)
        if reason is None and stage.batch_layers and plan.job.schedule == "zero-bubble":
            reason = "zero-bubble puts off weight gradients, which are summed over the group here"
        if reason is not None:
            raise HeterpsError(f"{reason}; take it out of the batch_layers of stage {stage.name!r}")
    return found.of_model()


def why_not_run(problem: Problem, plan: Plan) -> str | None:
    """Why the groups of a plan of the problem cannot be run; None where they can."""
    try:
        check_groups(problem.profile, plan)
        _splits(problem, plan)
        _batch_calls(problem, plan)
    except HeterpsError as error:
        return str(error)
    return None


def replanned(
    specification: RunSpecification,
    problem: Problem,
    plan: Plan,
    schedule: Schedule,
    from_step: int = 0,
    devices: Sequence[str] | None = None,
) -> RunSpecification:
    """The specification of the next generation.

    Args:
        specification: The one that runs now.
        problem: The problem that the run started with. A corrected problem may have ordered the
            schedule, but what emulated devices take does not depend on what is believed of them.
        plan: What shall run.
        schedule: Its action lists.
        from_step: The first step that may run under the new plan.
        devices: Its ranks; by default those of now.
    """
    ranks: dict[str, Any] = {}
    if devices is not None:
        places = torch_devices(problem.cluster, devices, specification.device)
        ranks = {"devices": tuple(devices), "torch_devices": places}
    return specification.changed(
        **ranks,
        generation=specification.generation + 1,
        from_step=from_step,
        plan=plan,
        actions=actions_of_members(plan, schedule.actions),
        buckets=schedule.buckets,
        overlaps_reduce=schedule.overlaps_reduce,
        emulation=emulation_of(problem, plan, schedule),
        splits=_splits(problem, plan),
        batch_calls=_batch_calls(problem, plan),
    )
