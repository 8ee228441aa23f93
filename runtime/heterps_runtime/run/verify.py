"""Verification: the same training in one process, and how far its losses are away."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from heterps_runtime.execution.batches import micro_batches
from heterps_runtime.models import losses
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.gradient_norm import clip_gradients, squared_norm
from heterps_runtime.stages.loss_scale import LossScale
from heterps_runtime.stages.optimizer import build_optimizer, step_scaled, use_loss_scale
from heterps_runtime.stages.stage import StageModule, StagePart, build_stage
from heterps_runtime.stages.start_values import start_values

REFERENCE_FILE = "reference.json"


def reference_losses(specification: RunSpecification) -> list[float]:
    """Losses of single-process training: one mean loss of the global batch for each step."""
    return reference_training(specification)[0]


def reference_training(specification: RunSpecification) -> tuple[list[float], StageModule]:
    """Trains the whole model in this process, without a pipeline.

    The micro-batches are those of the plan, so that batch normalisation sees the same samples.

    Returns:
        One mean loss of the global batch for each step, and the trained model.
    """
    job, profile = specification.plan.job, specification.profile
    assert profile.source is not None
    whole = StagePart(
        0, profile.num_layers - 1, job.micro_batch_size, specification.seed, job.dtype
    )
    module = build_stage(profile.source, profile, whole, start_values(specification))
    module.train()
    optimizer = build_optimizer(job.optimizer, module.parameters(), specification.learning_rate)
    loss_scale = LossScale.for_format(job.dtype)
    use_loss_scale(optimizer, loss_scale)
    if specification.resume_from is not None:
        from heterps_runtime.state.checkpoint import restore

        parameters, buffers = module.parameters_by_name(), module.buffers_by_name()
        restore(specification.resume_from, parameters, [buffers], optimizer)
    found = []
    for step in range(specification.first_step, specification.num_steps):
        total = 0.0
        batches = micro_batches(specification, step, range(job.num_micro_batches))
        for index, (inputs, target) in sorted(batches.items()):
            output = module(inputs, (), (specification.seed, step, index))[0]
            loss = losses.loss_sum(profile.source, output, target) / job.global_batch_size
            if loss.requires_grad:
                torch.autograd.backward(loss if loss_scale is None else loss * loss_scale.value)
            total += float(loss.detach())
        _update(module, optimizer, loss_scale, specification.max_gradient_norm)
        found.append(total)
    return found, module


def _update(
    module: StageModule,
    optimizer: torch.optim.Optimizer | None,
    loss_scale: LossScale | None,
    max_norm: float | None,
) -> None:
    """Clips, and makes one optimizer step; in float16, none where a gradient has overflowed."""
    own = list(module.parameters())
    factor: float | None = 1.0
    if loss_scale is not None:
        factor = loss_scale.gradient_factor(squared_norm(own), max_norm)
        loss_scale.update(is_skipped=factor is None)
    elif max_norm is not None:
        clip_gradients(own, squared_norm(own), max_norm)
    if optimizer is not None:
        if factor is not None:
            step_scaled(optimizer, own, factor)
        optimizer.zero_grad(set_to_none=True)


def max_difference(found: Sequence[float], expected: Sequence[float]) -> float:
    """Largest absolute difference of two loss curves; infinite where one is not a number."""
    differences = [abs(a - b) for a, b in zip(found, expected, strict=True)]
    return max((d if d == d else float("inf") for d in differences), default=0.0)
