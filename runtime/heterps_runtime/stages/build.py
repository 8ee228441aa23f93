"""Builds the stages of a device, and nothing else of the model."""

from __future__ import annotations

import torch
from torch import nn

from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.stage import Stage
from heterps_configs.errors import PlanMismatchError
from heterps_envs.layer_costs.group_slice import GroupSlice
from heterps_runtime.models.build import build_module
from heterps_runtime.models.layers import layers_of
from heterps_runtime.models.recordings import recorded
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.stage import StageModule, StagePart
from heterps_runtime.stages.start_values import Initialised, Sharing, StartValues, start_values
from heterps_runtime.tensor_parallel.split import split_buffers
from heterps_runtime.tensor_parallel.sums import GroupSums


def build_stages(
    specification: RunSpecification,
    device: str,
    start: StartValues | None = None,
    torch_device: torch.device | str = "cpu",
    sums: GroupSums | None = None,
    *,
    has_own_loss: bool = False,
) -> dict[str, StageModule]:
    """Builds the stages of one device, and nothing else of the model.

    Stages of one device that use the same parameter (tied weights, overlapping replicas) share it.

    Args:
        specification: Of the run.
        device: Its name.
        start: Where the values come from; by default as the specification says.
        torch_device: Where the stages compute.
        sums: Over the device's tensor-parallel group; None where it is alone.
        has_own_loss: Whether the loss is another than the model's source names: it reads whole
            outputs.
    """
    job, profile = specification.plan.job, specification.profile
    assert profile.source is not None
    modules: dict[str, StageModule] = {}
    shared: dict[str, nn.Parameter] = {}
    start = start or start_values(specification)
    for stage in specification.plan.stages:
        if device in stage.devices:
            part = StagePart(
                stage.first_layer,
                stage.last_layer,
                micro_batch_size=job.micro_batch_size,
                seed=specification.seed,
                dtype=job.dtype,
                device=str(torch_device),
                recompute_layers=stage.recompute_layers,
                offloaded_layers=stage.offloaded_layers,
                defers_weight_gradients=job.schedule == "zero-bubble"
                and specification.engine == "heterps",
                group=_slice_of(stage, device),
                whole_layers=stage.whole_layers,
                batch_layers=stage.batch_layers,
                batch_calls=specification.batch_calls,
                split=specification.splits,
                sums=sums,
                # Torch's engine computes the loss of whole outputs.
                keeps_logits=specification.engine == "heterps" and not has_own_loss,
            )
            module = build_stage(profile.source, profile, part, Sharing(start, shared))
            module.train()
            for size in set(job.micro_batch_sizes):
                module.specs(size)
            module.use(shared)
            shared.update(module.parameters_by_name())
            modules[stage.name] = module
    if specification.is_online and not modules:
        # Imports the model's libraries now: a device that joins later must not keep all waiting.
        build_module(profile.source)
    return modules


def build_stage(
    source: ModelSource, profile: ModelProfile, part: StagePart, start: StartValues | None = None
) -> StageModule:
    """Builds some layers of a model, and nothing else.

    Args:
        source: How to build the model.
        profile: Its profile; the layers must be those of the model.
        part: Which layers.
        start: Gives the layers their values; None: initialised from the seed.

    Raises:
        PlanMismatchError: The model has other layers than the profile.
        HeterpsError: The model cannot be built or run.
    """
    module = build_module(source, dtype=part.dtype)
    recording = recorded(source, module, part.micro_batch_size, part.dtype)
    layers = layers_of(recording)
    if [layer.name for layer in layers] != [layer.name for layer in profile.layers]:
        raise PlanMismatchError(
            f"{profile.name}: the model has {len(layers)} layers that differ from the "
            f"{profile.num_layers} of its profile; trace it again"
        )
    assert 0 <= part.first_layer <= part.last_layer < len(layers)
    start = start or Initialised(part.seed)
    stage = StageModule(source, module, layers, recording, part, start)
    start.fill(stage.buffers_by_name())
    stage.slices |= split_buffers(module, stage.slices, stage.parameters_by_name())
    return stage


def _slice_of(stage: Stage, device: str) -> GroupSlice | None:
    """What a device of a stage's group holds of it; None where it is alone."""
    if stage.degree == 1:
        return None
    shares = stage.tensor_shares or (1 / stage.degree,) * stage.degree
    return GroupSlice(stage.devices.index(device), shares)
