"""Placements: layer -> device class, with replicas; their code for kernels; plans read as such."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import HeterpsError, PlanMismatchError
from heterps_envs.closed_form.formula import CUT_BIT, MAX_REPLICAS, OPTION_MASK, REPLICA_SHIFT
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import stages_step_time_s
from heterps_envs.cost_tables import CostTables
from heterps_envs.options import Memory, StageOption
from heterps_envs.problem import Problem
from heterps_envs.stage_tables import has_strategies, replicas_are_alike, stage_tables

# Of micro-batches through stages in a step: seconds of simulation, and a few gigabytes.
MOST_PASSES = 2_000_000


@dataclass(frozen=True)
class PlacedStage:
    """Layers `first_layer .. last_layer` (inclusive) on one class (index).

    Attributes:
        replicas: Groups of devices that each hold all of its layers.
        degree: Devices of each, which split the layers (tensor parallel).
        recompute: Its layers drop their activations and compute them again.
        offload: Its layers keep their activations in host memory.
        shards_state: Its replicas divide the optimizer state among them.
    """

    first_layer: int
    last_layer: int
    device_class: int
    replicas: int = 1
    degree: int = 1
    recompute: bool = False
    offload: bool = False
    shards_state: bool = False


Placement = tuple[PlacedStage, ...]


def encode(
    placement: Sequence[PlacedStage], options: Sequence[StageOption] = ()
) -> NDArray[np.int32]:
    """(L,) int32 code of a placement, see `heterps_envs.closed_form.formula`.

    Args:
        placement: The stages.
        options: Of the tables that the code is for; empty: one for each class.
    """
    code = np.zeros(placement[-1].last_layer + 1, np.int32)
    kinds = [_option_index(stage, options) for stage in placement]
    for stage, kind, following in zip(placement, kinds, [*kinds[1:], -1], strict=True):
        assert 1 <= stage.replicas <= MAX_REPLICAS
        code[stage.first_layer : stage.last_layer + 1] = kind | (
            (stage.replicas - 1) << REPLICA_SHIFT
        )
        if following == kind:
            code[stage.last_layer] |= CUT_BIT
    return code


def _option_index(stage: PlacedStage, options: Sequence[StageOption]) -> int:
    if not options:
        return stage.device_class
    memory: Memory = "recompute" if stage.recompute else "offload" if stage.offload else "keep"
    return options.index(StageOption(stage.device_class, stage.degree, memory, stage.shards_state))


def decode(code: NDArray[np.int32], options: Sequence[StageOption] = ()) -> Placement:
    """The placement that a code stands for; the inverse of `encode`."""
    stages, first = [], 0
    for layer, value in enumerate(code):
        kind = int(value) & OPTION_MASK
        is_last = layer + 1 == len(code)
        if is_last or int(value) & CUT_BIT or int(code[layer + 1]) & OPTION_MASK != kind:
            chosen = options[kind] if options else StageOption(kind)
            stages.append(
                PlacedStage(
                    first,
                    layer,
                    chosen.device_class,
                    replicas=(int(value) >> REPLICA_SHIFT) + 1,
                    degree=chosen.degree,
                    recompute=chosen.memory == "recompute",
                    offload=chosen.memory == "offload",
                    shards_state=chosen.shards_state,
                )
            )
            first = layer + 1
    return tuple(stages)


def closed_form_step_time_s(problem: Problem, placement: Sequence[PlacedStage]) -> float:
    """Closed-form step time of a placement, also where its memory does not suffice."""
    return _unlimited_s(problem.tables, placement)


def _unlimited_s(tables: CostTables, placement: Sequence[PlacedStage]) -> float:
    """Closed-form step time where memory is no limit.

    Not by a code: with a class for each stage there may be more than one has bits for.
    """
    rows = [(stage.last_layer + 1, stage.device_class, stage.replicas) for stage in placement]
    return float(stages_step_time_s(np.array(rows, np.int64), kernel_tables(tables)))


def closed_form_of_plan_s(problem: Problem, plan: Plan, placement: Placement) -> float:
    """Closed-form step time of a plan that was bound from a placement.

    Where equal nodes share classes, each cut and each all-reduce takes the slowest of the links
    that the plan itself uses for it. Where stages are more than layers on one device, the plan says
    how each is carried out.
    """
    if not problem.merges_nodes and not has_strategies(plan):
        return closed_form_step_time_s(problem, placement)
    ranges = [(stage.first_layer, stage.last_layer) for stage in placement]
    tables = stage_tables(problem, plan, ranges)
    by_stage = [replace(stage, device_class=index) for index, stage in enumerate(placement)]
    return _unlimited_s(tables, by_stage)


# What a plan is for, beside its micro-batches.
_JOB_FIELDS = ("global_batch_size", "micro_batch_size", "dtype", "optimizer", "schedule")


def check_plan(problem: Problem, plan: Plan) -> None:
    """Refuses a plan that does not belong to the problem.

    Raises:
        PlanMismatchError: It was made for other layers, another cluster or another job.
        HeterpsError: The devices of a group are on several nodes, or only some of them are
            emulated, layers are offloaded where a device has no link to its host or is unlike
            others of its group, or there are more than `MOST_PASSES`.
    """
    if plan.model_fingerprint != problem.layers_fingerprint:
        raise PlanMismatchError(
            f"the plan was made for the model {plan.model!r} with {plan.num_layers} layers "
            f"(fingerprint {plan.model_fingerprint}); {problem.profile.name!r} has "
            f"{problem.profile.num_layers} (fingerprint {problem.layers_fingerprint})"
        )
    if plan.job.num_micro_batches != problem.job.num_micro_batches:
        raise PlanMismatchError(
            f"the plan routes {plan.job.num_micro_batches} micro-batches, the job has "
            f"{problem.job.num_micro_batches}"
        )
    if plan.job is not problem.job:
        _check_job(plan.job, problem.job)
    unknown = [name for name in plan.devices if name not in problem.device_named]
    if unknown:
        raise PlanMismatchError(
            f"the plan was made for the cluster {plan.cluster!r}; the cluster "
            f"{problem.cluster.name!r} has no device called {', '.join(map(repr, unknown))}"
        )
    passes = sum(len(entry.stages) * len(entry.micro_batches) for entry in plan.pipelines)
    if passes > MOST_PASSES:
        raise HeterpsError(
            f"{plan.job.num_micro_batches} micro-batches on {len(plan.stages)} stages are {passes} "
            f"passes in a step; at most {MOST_PASSES} are simulated or run: take larger "
            "micro-batches"
        )
    for stage in plan.stages:
        if len(stage.devices) > 1 or stage.offloaded_layers:
            _check_group(problem, stage)


def _check_group(problem: Problem, stage: Stage) -> None:
    devices = [problem.device_named[name] for name in stage.devices]
    first = devices[0]
    for other in devices[1:]:
        if other.node != first.node:
            raise HeterpsError(
                f"stage {stage.name!r}: {first.name!r} is on node {first.node!r} and "
                f"{other.name!r} on {other.node!r}; a tensor-parallel group must be on one node"
            )
        if (other.type.emulation is None) != (first.type.emulation is None):
            raise HeterpsError(
                f"stage {stage.name!r}: of {first.name!r} and {other.name!r} one is emulated; in a "
                "tensor-parallel group all devices are, or none"
            )
        if stage.offloaded_layers and other.type.name != first.type.name:
            raise HeterpsError(
                f"stage {stage.name!r} offloads layers, and {first.name!r} is {first.type.name} "
                f"and {other.name!r} {other.type.name}; a group that offloads has equal devices"
            )
    if stage.offloaded_layers and first.type.host_bandwidth_bytes_per_s is None:
        raise HeterpsError(
            f"stage {stage.name!r} offloads layers, and the device type {first.type.name!r} has no "
            "host_bandwidth_bytes_per_s"
        )


def _check_job(planned: Job, asked: Job) -> None:
    """Lets pass what a plan's seconds and bytes do not go by, such as the objective."""
    pairs = [(name, getattr(planned, name), getattr(asked, name)) for name in _JOB_FIELDS]
    unlike = [f"{name}: {a} in the plan, {b} in the problem" for name, a, b in pairs if a != b]
    if unlike:
        told = "; ".join(unlike)
        raise PlanMismatchError(f"the plan was made for another job than the problem's: {told}")


def placement_of(problem: Problem, plan: Plan) -> Placement | None:
    """The placement that a plan was bound from, or None for a plan that no placement describes.

    None for: several stages on one device, replicas on devices of different classes, with unequal
    shares of the micro-batches or carried out in unlike ways, pipelines with different cuts, groups
    with uneven shares, stages that compute again, offload or shard only some of their layers.
    """
    if len(plan.devices) < sum(len(stage.devices) for stage in plan.stages):
        return None
    by_range: dict[tuple[int, int], list[Stage]] = defaultdict(list)
    for stage in plan.stages:
        by_range[stage.first_layer, stage.last_layer].append(stage)
    ranges = sorted(by_range)
    if [layer for first, last in ranges for layer in range(first, last + 1)] != list(
        range(plan.num_layers)
    ) or not replicas_are_alike(plan):
        return None
    placed, share, class_of = list[PlacedStage](), _routed(plan), problem.class_of
    for replicas in map(by_range.__getitem__, ranges):
        classes = {class_of[name] for stage in replicas for name in stage.devices}
        fair = -(-plan.job.num_micro_batches // len(replicas))
        if (
            len(classes) > 1
            or len(replicas) > MAX_REPLICAS
            or any(share[stage.name] > fair for stage in replicas)
            or not _is_uniform(plan, replicas[0])
        ):
            return None
        placed.append(_placed(plan, replicas, classes.pop()))
    return tuple(placed)


def _routed(plan: Plan) -> dict[str, int]:
    """Micro-batches that pass each stage, by its name."""
    share: dict[str, int] = defaultdict(int)
    for pipe in plan.pipelines:
        for name in pipe.stages:
            share[name] += len(pipe.micro_batches)
    return share


def _is_uniform(plan: Plan, stage: Stage) -> bool:
    """Whether all layers and devices of a stage are treated alike."""
    shared = plan.sharded_layers.intersection(stage.layers)
    groups = (stage.recompute_layers, stage.offloaded_layers, shared)
    is_even = not stage.uneven_shares and not stage.unsplit_layers
    return is_even and all(len(each) in (0, len(stage.layers)) for each in groups)


def _placed(plan: Plan, replicas: Sequence[Stage], device_class: int) -> PlacedStage:
    stage = replicas[0]
    return PlacedStage(
        stage.first_layer,
        stage.last_layer,
        device_class,
        len(replicas),
        degree=stage.degree,
        recompute=bool(stage.recompute_layers),
        offload=bool(stage.offloaded_layers),
        shards_state=len(replicas) > 1 and stage.first_layer in plan.sharded_layers,
    )
