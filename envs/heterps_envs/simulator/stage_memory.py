"""Bytes of the stages of a plan: state of every device, and what a micro-batch takes of a stage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.stage import Stage
from heterps_envs.arrays import Floats, Integers
from heterps_envs.layer_costs.pass_memory import pass_bytes, summed
from heterps_envs.problem import Problem
from heterps_envs.schedule.plan_arrays import state_parts
from heterps_envs.schedule.tied import tied_share
from heterps_envs.simulator.prepared import PreparedPlan

# `ModelProfile.tied_layers`
Tied = Mapping[int, tuple[int, ...]]
# Layers of a device, and the profile that says what one device of its group holds of each.
Layers = dict[int, ModelProfile]

# What else a running model holds, in round numbers: the optimizer's step count of each parameter;
# the losses, and small tensors that every stage makes for itself (frequencies of rotary positions).
SCALAR_BYTES_OF_LAYER = 64
SCALAR_BYTES_OF_STAGE = 256


@dataclass(frozen=True, eq=False)
class StageBytes:
    """D devices in the order of `Plan.device_groups`, S stages; of one full micro-batch.

    Of a tensor-parallel group, the bytes are those of one of its devices.

    Attributes:
        parameter_bytes: (D,) weights, their copies under mixed precision, and buffers such as
            running statistics.
        optimizer_bytes: (D,) moments and master weights.
        gradient_bytes: (S,) gradients that the stage is the first on its device to have.
        early_bytes: (S,) of these, what `backward-input` makes.
        kept_bytes: (S,) from a forward to its backward pass.
        later_bytes: (S,) held from `backward-input` to `backward-weight`: what linear layers and
            convolutions read, and the gradients of what they returned.
        turn_bytes: (S,) most that `backward-input` holds beyond `kept_bytes`: such gradients come
            before as many activations have gone.
        again_bytes: (S,) most that a backward pass holds beyond them: layers computed again.
        first_pass: (S, 2) gradients, and activations beyond those before it, at the worst moment
            of the stage's first backward pass.
        first_input: (S, 2) the same for its first `backward-input`.
        first_weight: (S, 2) the same for its first `backward-weight`.
        workspace_bytes: (S,) beyond all that, while a pass runs; what two layers that are offloaded
            keep is part of it.
        come_bytes: S times (n + 1,) gradients that the stage's first backward pass has made when
            0 .. n layers are done, back first.
        gone_bytes: S times (n + 1,) of `kept_bytes`, what such a pass has freed by then.
    """

    parameter_bytes: Floats
    optimizer_bytes: Floats
    gradient_bytes: Floats
    early_bytes: Floats
    kept_bytes: Floats
    later_bytes: Floats
    turn_bytes: Floats
    again_bytes: Floats
    first_pass: Floats
    first_input: Floats
    first_weight: Floats
    workspace_bytes: Floats
    come_bytes: tuple[Floats, ...]
    gone_bytes: tuple[Floats, ...]


def stage_bytes(
    prepared: PreparedPlan,
    first_gradient: Integers,
    first_share: Floats,
    rank: int | None = None,
) -> StageBytes:
    """The bytes of a plan's stages.

    Args:
        prepared: The plan, and the problem where they come from.
        first_gradient: (S,) when each stage has its first gradients: any rising numbers.
        first_share: (S,) the micro-batch of that pass, as a share of a full one.
        rank: Which device of each group; by default one with the largest share.
    """
    problem, plan, way_of = prepared.problem, prepared.plan, prepared.arrays.way_of
    by_way = [problem.for_stage(s, _rank_of(s, rank)) for s in prepared.arrays.ways]
    own = [by_way[way] for way in way_of.tolist()]
    gradients = _new_gradients(prepared, own, first_gradient)
    kinds = [problem.class_of[stage.devices[_position(stage, rank)]] for stage in plan.stages]
    rows: dict[tuple[Any, ...], _Row] = {}
    keys = []
    for way, *each in zip(
        way_of.tolist(), own, plan.stages, kinds, gradients, first_share.tolist(), strict=True
    ):
        held, stage, kind, new, share = each
        keys.append((way, kind, share, new.tobytes()))
        # Replicas are alike, and there may be hundreds.
        if keys[-1] not in rows:
            rows[keys[-1]] = _row(held, stage, kind, new, share)
    found = [rows[key] for key in keys]
    columns = np.array([row.columns for row in found]).T
    parameter_bytes, optimizer_bytes = _state_bytes(prepared, own)
    return StageBytes(
        parameter_bytes=parameter_bytes,
        optimizer_bytes=optimizer_bytes,
        gradient_bytes=np.array([row.gradient_bytes for row in found]),
        kept_bytes=columns[0],
        later_bytes=columns[1],
        turn_bytes=columns[2],
        again_bytes=columns[3],
        first_pass=columns[4:6].T,
        early_bytes=columns[6],
        first_input=columns[7:9].T,
        first_weight=columns[9:11].T,
        workspace_bytes=columns[11],
        come_bytes=tuple(row.come_bytes for row in found),
        gone_bytes=tuple(row.gone_bytes for row in found),
    )


class _Row(NamedTuple):
    """What one stage has in `StageBytes`; `columns` from `kept_bytes` on."""

    columns: tuple[float, ...]
    gradient_bytes: float
    come_bytes: Floats
    gone_bytes: Floats


def _row(problem: Problem, stage: Stage, kind: int, gradients: Floats, share: float) -> _Row:
    """Found once for all plans of a problem."""
    away = stage.recompute_layers, stage.offloaded_layers
    layers = stage.first_layer, stage.last_layer
    key = _row, *layers, *away, kind, share, gradients.tobytes()
    known = problem.derived.get(key)
    if not isinstance(known, _Row):
        freed = _freed(problem, stage, kind)
        passes = pass_bytes(problem.layer_memory, stage, kind, gradients, freed, share)
        columns = (*passes, _workspace_bytes(problem, stage, kind))
        known = _Row(columns, float(gradients.sum()), summed(gradients[::-1]), freed)
        problem.derived[key] = known
    return known


def _state_bytes(prepared: PreparedPlan, own: Sequence[Problem]) -> tuple[Floats, Floats]:
    """(D,) of parameters with their copies and buffers, and of optimizer state."""
    problem, plan = prepared.problem, prepared.plan
    job, tied = problem.job, problem.profile.tied_layers
    parts = state_parts(plan) if plan.sharded_state else 1
    stage_device = prepared.arrays.stage_device.tolist()
    held: list[list[int]] = [[] for _ in prepared.arrays.shape.groups]
    for number, device in enumerate(stage_device):
        held[device].append(number)
    way_of = prepared.arrays.way_of.tolist()
    known: dict[tuple[int, ...], tuple[float, float]] = {}
    rows = []
    for numbers in held:
        key = tuple([way_of[number] for number in numbers])
        if key not in known:
            layers: Layers = {}
            for number in numbers:
                layers.update(dict.fromkeys(plan.stages[number].layers, own[number].profile))
            total = _parameters(layers, tied).sum()
            stepped = (_parameters(layers, tied, are_trained=True) / parts).sum()
            known[key] = (
                total * job.weight_bytes_per_parameter
                + _buffer_bytes(problem, layers)
                + _cast_bytes(layers, problem),
                stepped * job.optimizer_bytes_per_parameter,
            )
        rows.append(known[key])
    parameter_bytes, optimizer_bytes = np.array(rows).T
    return parameter_bytes, optimizer_bytes


def _freed(problem: Problem, stage: Stage, kind: int) -> Floats:
    """(n + 1,) of one micro-batch, see `LayerMemory.freed_bytes`."""
    memory = problem.layer_memory
    away = stage.recompute_layers, stage.offloaded_layers
    return memory.freed_bytes(stage.first_layer, stage.last_layer, kind, *away)


def _rank_of(stage: Stage, rank: int | None) -> int | None:
    """One device of a stage's group; None: one with the largest share."""
    return None if rank is None else _position(stage, rank)


def _position(stage: Stage, rank: int | None) -> int:
    """Of the device in the stage's group; groups may be of unlike sizes."""
    return min(rank or 0, stage.degree - 1)


def _cast_bytes(layers: Layers, problem: Problem) -> float:
    dtype = problem.job.dtype
    found = {id(profile): np.array(profile.cast_bytes(dtype)) for profile in layers.values()}
    return float(np.array([found[id(layers[layer])][layer] for layer in layers]).sum())


def _buffer_bytes(problem: Problem, layers: Layers) -> float:
    """Buffers of a device's layers, and the scalars of a model that can be run."""
    num_bytes = float(sum(problem.profile.layers[layer].buffer_bytes for layer in layers))
    if problem.profile.source is not None:
        num_bytes += SCALAR_BYTES_OF_STAGE + SCALAR_BYTES_OF_LAYER * len(layers)
    return num_bytes


def _parameters(layers: Layers, tied: Tied, *, are_trained: bool = False) -> Floats:
    """(L,) parameters of a device that holds `layers`; shared ones count for one layer only."""
    counts = np.zeros(next(iter(layers.values())).num_layers)
    for layer, profile in layers.items():
        own = profile.layers[layer]
        counts[layer] = own.trained_parameters if are_trained else own.num_parameters
    for owner, users in tied.items():
        present = [user for user in users if user in layers]
        shared = {user: counts[user] * tied_share(layers[user], user) for user in present}
        # Without their owner, the user of most of them stands for all.
        kept = None if owner in layers or not present else max(present, key=lambda u: shared[u])
        for user in present:
            if user != kept:
                counts[user] -= shared[user]
    return counts


def _new_gradients(
    prepared: PreparedPlan, own: Sequence[Problem], first_gradient: Integers
) -> list[Floats]:
    """For each stage, (n,) gradient bytes of its layers that its device has not had before.

    A gradient that layers share comes with the first of them: within a stage autograd hands it over
    when the layer in front has added its part.
    """
    arrays, stages = prepared.arrays, prepared.plan.stages
    tied = prepared.problem.profile.tied_layers
    owner_of = {user: owner for owner, users in tied.items() for user in users}
    stages_on = np.bincount(arrays.stage_device)
    # Stages that have a device for themselves have all gradients of their layers.
    known: dict[int, Floats] = {}
    had: list[dict[int, float]] = [{} for _ in stages_on]
    new: dict[int, Floats] = {}
    for index in np.argsort(first_gradient, kind="stable").tolist():
        device, way = int(arrays.stage_device[index]), int(arrays.way_of[index])
        if stages_on[device] > 1:
            new[index] = _gradients(own[index], stages[index], owner_of, had[device])
            continue
        if way not in known:
            known[way] = _gradients(own[index], stages[index], owner_of, {})
        new[index] = known[way]
    return [new[index] for index in range(len(stages))]


def _gradients(
    problem: Problem, stage: Stage, owner_of: Mapping[int, int], had: dict[int, float]
) -> Floats:
    """(n,) bytes of a stage's gradients beyond what its device `had`, where they are added."""
    profile, found = problem.profile, np.zeros(len(stage.layers))
    for place, layer in enumerate(stage.layers):
        number = float(profile.layers[layer].trained_parameters)
        shared = number * tied_share(profile, layer) if layer in owner_of else 0.0
        for group, count in ((layer, number - shared), (owner_of.get(layer), shared)):
            if group is not None:
                found[place] += max(count - had.get(group, 0.0), 0.0)
                had[group] = max(count, had.get(group, 0.0))
    return found * problem.job.weight_bytes_per_parameter


def _workspace_bytes(problem: Problem, stage: Stage, kind: int) -> float:
    """Beyond what micro-batches and gradients hold, while a pass of the stage runs."""
    part, away = slice(stage.first_layer, stage.last_layer + 1), list(stage.offloaded_layers)
    workspace = float(problem.layer_memory.workspace_bytes[part, kind].max())
    if away:
        workspace += float(problem.offload.passing_bytes[away, kind].max())
    return workspace
