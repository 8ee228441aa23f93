"""The loss of a device's micro-batches: what each weighs in the mean of the whole batch."""

from __future__ import annotations

import torch
from torch import Tensor

from heterps_runtime.models.losses import Loss


class LossShares:
    """Collects the losses of the micro-batches of a step.

    Args:
        is_told: Whether this device tells them: all devices of a group compute the loss.

    Attributes:
        scale: What gradients are multiplied by, against underflow.
    """

    def __init__(self, *, is_told: bool) -> None:
        self._is_told = is_told
        self.scale = 1.0
        # Tensors of the same few numbers, made once.
        self._seeds: dict[float, Tensor] = {}
        self.clear()

    def clear(self) -> None:
        """Forgets the micro-batches of the step before."""
        self._losses: list[tuple[Tensor, float]] = []

    def take(
        self, loss: Loss, output: Tensor, target: Tensor, num_samples: int
    ) -> tuple[Tensor, Tensor]:
        """Takes a micro-batch.

        Args:
            loss: What reads the output.
            output: Of the model, for a whole micro-batch.
            target: Of the samples that there are.
            num_samples: Of the whole batch, on all devices together.

        Returns:
            The sum over its elements, and what its backward pass starts with: what each element
            weighs in the batch's mean.
        """
        if len(target) == 0:
            # Nobody's samples: zero, with a way back for the gradients.
            total, elements = output[:0].sum().float(), 1
        else:
            # Behind the targets that there are, samples fill up an incomplete micro-batch.
            output = output if len(output) <= len(target) else output[: len(target)]
            total, elements = loss.total(output, target), loss.elements(target)
        weight = 1 / (elements * num_samples)
        seed = weight * self.scale
        if seed not in self._seeds:
            self._seeds[seed] = torch.full_like(total, seed)
        self._losses.append((total.detach(), weight))
        return total, self._seeds[seed]

    def total(self) -> float:
        """This device's share of the mean loss."""
        if not self._is_told or not self._losses:
            return 0.0
        # All at once: a GPU is waited for once.
        losses: list[float] = torch.stack([loss for loss, _ in self._losses]).tolist()
        return sum(loss * weight for loss, (_, weight) in zip(losses, self._losses, strict=True))
