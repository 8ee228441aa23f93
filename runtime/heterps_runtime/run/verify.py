"""Verification: the same training in one process, and how far its losses are away."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from heterps_runtime.execution.data_feed import DataFeed
from heterps_runtime.specification.devices import CPU
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.build import build_stage
from heterps_runtime.stages.gradient_norm import clip_gradients, squared_norm
from heterps_runtime.stages.loss_scale import LossScale
from heterps_runtime.stages.optimizer import program_optimizer, step_scaled, use_loss_scale
from heterps_runtime.stages.stage import StageModule, StagePart
from heterps_runtime.stages.start_values import start_values
from heterps_runtime.training.batches import BatchSource, Needs
from heterps_runtime.training.own_state import OwnState
from heterps_runtime.training.prepared import batches_of, loss_of, source_under
from heterps_runtime.training.program import TrainingProgram
from heterps_runtime.training.program_file import training_program
from heterps_runtime.training.updates import Updates

REFERENCE_FILE = "reference.json"


def reference_losses(specification: RunSpecification) -> list[float]:
    """Losses of single-process training: one mean loss of the global batch for each step."""
    return reference_training(specification)[0]


def reference_training(
    specification: RunSpecification, torch_device: torch.device = CPU
) -> tuple[list[float], StageModule]:
    """Trains the whole model in this process, without a pipeline.

    The micro-batches are those of the plan, so that batch normalisation sees the same samples.

    Args:
        specification: Of the run that it is the reference of.
        torch_device: Where the model computes.

    Returns:
        One mean loss of the global batch for each step, and the trained model.
    """
    job, profile = specification.plan.job, specification.profile
    assert profile.source is not None
    whole = StagePart(
        0,
        profile.num_layers - 1,
        job.micro_batch_size,
        specification.seed,
        job.dtype,
        str(torch_device),
    )
    program = training_program(specification.program)
    source = source_under(program, profile.source)
    module = build_stage(source, profile, whole, start_values(specification))
    module.train()
    named = module.parameters_by_name()
    optimizer = program_optimizer(
        program,
        (job.optimizer, specification.learning_rate),
        named,
        {name: tuple(parameter.shape) for name, parameter in named.items()},
    )
    updates = Updates(program, optimizer)
    updates.begin(specification.first_step)
    loss_scale = LossScale.for_format(job.dtype)
    use_loss_scale(optimizer, loss_scale)
    if specification.resume_from is not None:
        from heterps_runtime.state.checkpoint import restore

        parameters, buffers = module.parameters_by_name(), module.buffers_by_name()
        saved = restore(specification.resume_from, parameters, [buffers], optimizer)
        OwnState(program.state).load(saved.program_state)
    batches = batches_of(program, source, job, specification.seed, specification.data_origin)
    loss_function, norm = loss_of(program, source), specification.max_gradient_norm
    whole_batch = _WholeBatch(job.num_micro_batches)
    feed = _feed(program, batches, whole_batch, torch_device, specification.num_steps)
    found = []
    for step in range(specification.first_step, specification.num_steps):
        total = 0.0
        for index, (inputs, target) in sorted(feed.of_step(step).items()):
            output = module(inputs, (), (specification.seed, step, index))[0]
            if len(target) == 0:
                continue
            # Behind the targets that there are, samples fill up an incomplete micro-batch.
            output = output if len(output) <= len(target) else output[: len(target)]
            elements = loss_function.elements(target) * whole_batch.num_samples
            loss = loss_function.total(output, target) / elements
            if loss.requires_grad:
                torch.autograd.backward(loss if loss_scale is None else loss * loss_scale.value)
            total += float(loss.detach())
        _update(module, optimizer, loss_scale, norm or program.max_gradient_norm)
        updates.after_step(())
        found.append(total)
    feed.close()
    return found, module


class _WholeBatch:
    """One process computes all micro-batches.

    Attributes:
        needs: All of them.
        num_samples: Of the step that was read last.
    """

    def __init__(self, num_micro_batches: int) -> None:
        self.needs, self.num_samples = Needs.all_of(range(num_micro_batches)), 0


def _feed(
    program: TrainingProgram,
    batches: BatchSource,
    whole_batch: _WholeBatch,
    torch_device: torch.device,
    stop: int,
) -> DataFeed:
    """Batches as the ranks read them: what samples draw in processes, they draw there alone."""
    num_workers = program.num_workers if program.data is not None else 0
    return DataFeed(batches, whole_batch, torch_device, stop, num_workers or None)


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
