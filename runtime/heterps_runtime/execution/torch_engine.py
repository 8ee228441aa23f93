"""The second engine: torch.distributed.pipelining's own schedules, for the plans they can express.

It is the reference and the comparison. Stages, losses, parameters and gradient sums are those of
the executor; orders, messages and passes are torch's.
"""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import (
    PipelineScheduleMulti,
    PipelineScheduleSingle,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleInterleavedZeroBubble,
)

from heterps_configs.documents.job import Schedule
from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.models.losses import Loss, SourceLoss
from heterps_runtime.models.recording import TensorSpec
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.specification.torch_plan import devices_in_order, stage_names
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.stages.stage import StageModule
from heterps_runtime.training.batches import Batch, Needs
from heterps_runtime.transport.lost_ranks import LostRankError
from heterps_runtime.transport.messenger import Messenger

SINGLE: dict[Schedule, type[PipelineScheduleSingle]] = {
    "gpipe": ScheduleGPipe,
    "1f1b": Schedule1F1B,
}
MULTIPLE: dict[Schedule, type[PipelineScheduleMulti]] = {
    "interleaved": ScheduleInterleaved1F1B,
    "zero-bubble": ScheduleInterleavedZeroBubble,
}
# Beside the model's inputs every stage gets the number of the micro-batch.
_NUMBER = "number_of_micro_batch"
# What calls the process groups in torch's schedules; and what calls the model, and words its errors
# anew.
_TALKING = ("torch.distributed.pipelining.schedules", "torch.distributed.distributed_c10d")
_CALLING = "torch.distributed.pipelining.stage"


class TorchEngine:
    """One device's part of a step, by torch's schedule of the plan's name.

    Args:
        specification: The run; ranks are in the order of the stages.
        device: This rank's device.
        owned: Its stages.
        messenger: Carries the gradient sums.
        first_step: Number of the first step, which dropout depends on.
    """

    def __init__(
        self,
        specification: RunSpecification,
        device: str,
        owned: OwnedStages,
        messenger: Messenger,
        first_step: int,
    ) -> None:
        plan = specification.plan
        names = stage_names(plan)
        assert specification.devices == devices_in_order(plan)
        assert specification.profile.source is not None
        self._owned, self._messenger = owned, messenger
        self._num_micro_batches = plan.job.num_micro_batches
        self._num_buckets = len(specification.buckets)
        self.num_samples = plan.job.global_batch_size
        self._loss: Loss = SourceLoss(specification.profile.source)
        self._has_last = names[-1] in owned.modules
        parts = {
            number: _Part(owned.modules[name], specification.seed, first_step)
            for number, name in enumerate(names)
            if plan.stage(name).devices == (device,)
        }
        self._parts = list(parts.values())
        self._loss_scale = 1.0
        size = plan.job.micro_batch_size
        stages = [_stage(part, number, len(names), size) for number, part in parts.items()]
        self._schedule = _schedule_of(
            plan.job.schedule, stages, self._num_micro_batches, self._loss_of
        )

    @property
    def micro_batches(self) -> set[int]:
        """All of them: every stage gets the model's inputs."""
        return set(range(self._num_micro_batches))

    @property
    def needs(self) -> Needs:
        """Inputs and targets of all of them."""
        return Needs.all_of(self.micro_batches)

    def step(
        self, batches: Mapping[int, Batch], start_s: float, slowdown: float = 1.0
    ) -> tuple[float, list[ActionRecord]]:
        """Runs torch's schedule once, sums gradients, and updates.

        Args:
            batches: Inputs and target of every micro-batch.
            start_s: Not used: torch's schedules record no times.
            slowdown: Not used: nothing is emulated.

        Returns:
            This device's share of the loss, and no records.
        """
        self._loss_scale = self._owned.begin_step(self._messenger)
        ordered = [batches[number] for number in sorted(batches)]
        arguments: dict[str, Any] = {
            name: torch.cat([inputs[name] for inputs, _ in ordered]) for name in ordered[0][0]
        }
        sizes = torch.tensor([len(target) for _, target in ordered])
        arguments[_NUMBER] = torch.repeat_interleave(torch.arange(len(ordered)), sizes)
        losses: list[Tensor] = []
        if self._has_last:
            arguments["target"] = torch.cat([target for _, target in ordered])
            arguments["losses"] = losses
        with _told_apart():
            self._schedule.step(return_outputs=False, **arguments)
        for bucket in range(self._num_buckets):
            self._owned.reduce_bucket(bucket, self._messenger)
        self._owned.update(self._messenger)
        for part in self._parts:
            part.num_steps += 1
        return sum(float(loss.detach()) for loss in losses) / self._loss_scale, []

    def _loss_of(self, output: Tensor, target: Tensor) -> Tensor:
        """A micro-batch's share of the mean loss of the batch."""
        elements = self._loss.elements(target) * self.num_samples
        return self._loss.total(output, target) * (self._loss_scale / elements)


class _Part(nn.Module):
    """A stage as torch calls it: received tensors by position, the model's inputs by name."""

    def __init__(self, stage: StageModule, seed: int, num_steps: int) -> None:
        super().__init__()
        self.stage = stage
        self._seed, self.num_steps = seed, num_steps

    def forward(self, *received: Tensor, **inputs: Tensor) -> Any:
        number = int(inputs.pop(_NUMBER)[0])
        for tensor in received:
            if tensor.requires_grad:
                # Torch sends gradients as they come, and only contiguous ones can be sent.
                tensor.register_hook(torch.Tensor.contiguous)  # type: ignore[no-untyped-call]
        outputs = self.stage(inputs, received, (self._seed, self.num_steps, number))
        return outputs[0] if self.stage.is_last else outputs


def _stage(part: _Part, number: int, count: int, size: int) -> PipelineStage:
    """With all shapes given: else torch runs the module once on memory that nobody has filled."""
    received, sent = part.stage.specs(size)
    if part.stage.is_last:
        sent = (part.stage.output_spec(size),)
    shapes: dict[str, Any] = {
        "input_args": _meta(received),
        "output_args": _meta(sent),
        "input_grads": _gradients(received),
        "output_grads": _gradients(sent),
    }
    known = inspect.signature(PipelineStage.__init__).parameters  # those of gradients: since 2.12
    return PipelineStage(
        part,
        number,
        count,
        part.stage.device,
        **{name: value for name, value in shapes.items() if name in known},
    )


def _meta(specs: tuple[TensorSpec, ...]) -> tuple[Tensor, ...]:
    return tuple(
        torch.empty(spec.shape, dtype=spec.dtype, device="meta", requires_grad=spec.requires_grad)
        for spec in specs
    )


def _gradients(specs: tuple[TensorSpec, ...]) -> tuple[Tensor | None, ...]:
    return tuple(
        torch.empty(spec.shape, dtype=spec.dtype, device="meta") if spec.requires_grad else None
        for spec in specs
    )


@contextmanager
def _told_apart() -> Iterator[None]:
    """Errors of a schedule's messages are lost ranks; those of the model stay what they are."""
    try:
        yield
    except RuntimeError as error:
        *_, (frame, _) = traceback.walk_tb(error.__traceback__)
        place = frame.f_globals.get("__name__")
        if place in _TALKING:
            raise LostRankError(str(error)) from error
        if place == _CALLING and error.__cause__ is not None:
            raise error.__cause__ from None
        raise


def _schedule_of(
    name: Schedule, stages: list[PipelineStage], num_micro_batches: int, loss: Any
) -> PipelineScheduleSingle | PipelineScheduleMulti:
    """Gradients are summed: the loss is divided by the batch already."""
    options: dict[str, Any] = {"loss_fn": loss, "scale_grads": False}
    if name in SINGLE:
        (stage,) = stages
        return SINGLE[name](stage, num_micro_batches, **options)
    return MULTIPLE[name](list(stages), num_micro_batches, **options)
