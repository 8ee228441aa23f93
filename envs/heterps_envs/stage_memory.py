"""Bytes of the stages of a plan: state of every device, and what a micro-batch takes of a stage."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_configs.plan import Plan, Stage
from heterps_envs.layer_memory import LayerMemory
from heterps_envs.problem import Problem
from heterps_envs.workload import tied_layers, tied_share

Floats = NDArray[np.float64]

# In the backward pass of one layer, gradients come and activations go at about the same time. For
# a while this share of either may be there besides: a round number, no measurement.
UNEVEN_SHARE = 0.25
# What else a running model holds, in round numbers: the optimizer's step count of each parameter;
# the losses, and small tensors that every stage makes for itself (frequencies of rotary positions).
SCALAR_BYTES_OF_LAYER = 64
SCALAR_BYTES_OF_STAGE = 256


@dataclass(frozen=True, eq=False)
class StageBytes:
    """D devices in the order of `Plan.devices`, S stages; of one full micro-batch.

    Attributes:
        parameter_bytes: (D,) weights, their copies under mixed precision, and buffers such as
            running statistics.
        optimizer_bytes: (D,) moments and master weights.
        gradient_bytes: (S,) gradients that the stage is the first on its device to have.
        kept_bytes: (S,) from a forward to its backward pass.
        later_bytes: (S,) held from `backward-input` to `backward-weight`: what linear layers and
            convolutions read, and the gradients of what they returned.
        turn_bytes: (S,) most that `backward-input` holds beyond `kept_bytes`: such gradients come
            before as many activations have gone.
        again_bytes: (S,) most that a backward pass holds beyond them: layers computed again.
        first_pass: (S, 2) gradients, and activations beyond those before it, at the worst moment
            of the stage's first backward pass.
        first_weight: (S, 2) the same for its first `backward-weight`.
        workspace_bytes: (S,) beyond all that, while a pass runs.
    """

    parameter_bytes: Floats
    optimizer_bytes: Floats
    gradient_bytes: Floats
    kept_bytes: Floats
    later_bytes: Floats
    turn_bytes: Floats
    again_bytes: Floats
    first_pass: Floats
    first_weight: Floats
    workspace_bytes: Floats


def stage_bytes(problem: Problem, plan: Plan, first_gradient: NDArray[np.int64]) -> StageBytes:
    """The bytes of a plan's stages.

    Args:
        problem: Where they come from.
        plan: Its stages.
        first_gradient: (S,) when each stage has its first gradients: any rising numbers.
    """
    job, devices = problem.job, plan.devices
    parameters = [_parameters(problem, layers) for layers in _layers_by_device(plan).values()]
    total = np.array([each.sum() for each in parameters])
    buffers = [_buffer_bytes(problem, layers) for layers in _layers_by_device(plan).values()]
    cast_bytes = np.array(problem.profile.cast_bytes(job.dtype))
    casts = np.array([cast_bytes[list(held)].sum() for held in _layers_by_device(plan).values()])
    gradients = _new_gradients(
        problem, plan, dict(zip(devices, parameters, strict=True)), first_gradient
    )
    rows = [
        _micro_batch(problem.layer_memory, stage, problem.class_of[stage.devices[0]], new)
        for stage, new in zip(plan.stages, gradients, strict=True)
    ]
    columns = np.array(rows).T
    return StageBytes(
        parameter_bytes=total * job.weight_bytes_per_parameter + np.array(buffers) + casts,
        optimizer_bytes=total * job.optimizer_bytes_per_parameter,
        gradient_bytes=np.array([new.sum() for new in gradients]),
        kept_bytes=columns[0],
        later_bytes=columns[1],
        turn_bytes=columns[2],
        again_bytes=columns[3],
        first_pass=columns[4:6].T,
        first_weight=columns[6:8].T,
        workspace_bytes=columns[8],
    )


def _buffer_bytes(problem: Problem, layers: set[int]) -> float:
    """Buffers of a device's layers, and the scalars of a model that can be run."""
    num_bytes = float(sum(problem.profile.layers[layer].buffer_bytes for layer in layers))
    if problem.profile.source is not None:
        num_bytes += SCALAR_BYTES_OF_STAGE + SCALAR_BYTES_OF_LAYER * len(layers)
    return num_bytes


def _layers_by_device(plan: Plan) -> dict[str, set[int]]:
    layers: dict[str, set[int]] = {device: set() for device in plan.devices}
    for stage in plan.stages:
        for device in stage.devices:
            layers[device].update(stage.layers)
    return layers


def _parameters(problem: Problem, layers: set[int]) -> Floats:
    """(L,) parameters of a device that holds `layers`; shared ones count for one layer only."""
    profile = problem.profile
    counts = np.zeros(profile.num_layers)
    for layer in layers:
        counts[layer] = profile.layers[layer].num_parameters
    for owner, users in tied_layers(profile).items():
        present = [user for user in users if user in layers]
        shared = {user: counts[user] * tied_share(profile, user) for user in present}
        # Without their owner, the user of most of them stands for all.
        kept = None if owner in layers or not present else max(present, key=lambda u: shared[u])
        for user in present:
            if user != kept:
                counts[user] -= shared[user]
    return counts


def _new_gradients(
    problem: Problem,
    plan: Plan,
    parameters: dict[str, Floats],
    first_gradient: NDArray[np.int64],
) -> list[Floats]:
    """For each stage, (n,) gradient bytes of its layers that its device has not had before."""
    seen: dict[str, set[int]] = defaultdict(set)
    new: dict[int, Floats] = {}
    for index in np.argsort(first_gradient, kind="stable"):
        stage = plan.stages[index]
        device = stage.devices[0]
        new[index] = (
            np.array(
                [
                    0.0 if layer in seen[device] else parameters[device][layer]
                    for layer in stage.layers
                ]
            )
            * problem.job.weight_bytes_per_parameter
        )
        seen[device].update(stage.layers)
    return [new[index] for index in range(len(plan.stages))]


def _micro_batch(
    memory: LayerMemory, stage: Stage, kind: int, gradients: Floats
) -> tuple[float, ...]:
    """The columns of `StageBytes` for one stage, from `kept_bytes` on."""
    first, last, recomputed = stage.first_layer, stage.last_layer, stage.recompute_layers
    part = slice(first, last + 1)
    kept = memory.kept_bytes(first, last, kind, recomputed)
    # Layers are done back first; the one that is under way may have been computed again.
    freed = memory.freed_bytes(first, last, kind, recomputed)
    again = np.zeros(last + 2 - first)
    for layer in recomputed:
        again[last - layer] = memory.own_bytes[layer, kind] + memory.saved_out_bytes[layer]
    done = np.concatenate([[0.0], np.cumsum(gradients[::-1])])
    inside = UNEVEN_SHARE * np.minimum(np.diff(done), np.diff(freed) + again[:-1])
    level = done - freed + again
    level[:-1] = np.maximum(level[:-1], level[1:]) + inside
    worst = int(np.argmax(level))
    later, turn, first_weight = _deferred(memory, stage, kept, freed, done)
    return (
        kept,
        later,
        turn,
        float(max((again - freed).max(), 0.0)),
        float(done[worst]),
        float(level[worst] - done[worst]),
        *first_weight,
        float(memory.workspace_bytes[part, kind].max()),
    )


def _deferred(
    memory: LayerMemory, stage: Stage, kept: float, freed: Floats, gradients: Floats
) -> tuple[float, float, tuple[float, float]]:
    """`later_bytes`, `turn_bytes` and `first_weight` of a stage.

    Activations that are free and gradients that are there are by the number of layers done.
    """
    first, last = stage.first_layer, stage.last_layer
    deferred = memory.deferred_bytes[first : last + 1]
    if np.isnan(deferred).any():  # then all that is kept but for what crossed the cuts
        crossed = memory.out_bytes[last] + memory.in_bytes[first] - memory.saved_in_bytes[first]
        return float(kept - crossed), 0.0, (float(gradients[-1]), 0.0)
    done = np.concatenate([[0.0], np.cumsum(deferred[::-1])])
    level = done - freed
    level[:-1] += UNEVEN_SHARE * np.minimum(np.diff(done), np.diff(freed))
    level_of_weights = gradients.copy()
    level_of_weights[:-1] += UNEVEN_SHARE * np.minimum(np.diff(gradients), np.diff(done))
    worst = int(np.argmax(level_of_weights - done))
    return (
        float(done[-1]),
        float(max(level.max(), 0.0)),
        (float(level_of_weights[worst]), float(-done[worst])),
    )
