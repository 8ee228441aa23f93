"""Losses as sums over samples, so that any split of a batch adds up to the same number."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from heterps_configs.documents.model.source import ModelSource
from heterps_configs.errors import HeterpsError

# Of functions in torch's own namespace: what `reduction="none"` is there.
_NO_REDUCTION = 0


def loss_sum(source: ModelSource, output: Tensor, target: Tensor) -> Tensor:
    """Sum over the samples of each sample's mean loss; over the batch size, the usual mean loss.

    Args:
        source: Says which loss.
        output: Model output: (B, ..., classes) for cross entropy (or (B, classes, ...), as torch
            has it), else of the target's shape up to dimensions of size 1.
        target: (B, ...).

    Returns:
        A float32 scalar.
    """
    return loss_total(source, output, target) / elements_per_sample(target)


def elements_per_sample(target: Tensor) -> int:
    """Over how many elements a sample's loss is the mean."""
    return target.numel() // target.shape[0]


def loss_total(source: ModelSource, output: Tensor, target: Tensor) -> Tensor:
    """Sum over the elements of all samples, in as few operations as there are.

    Args:
        source: Says which loss.
        output: As in `loss_sum`.
        target: (B, ...).

    Returns:
        A float32 scalar (float64 for such an output); over `elements_per_sample`, it is `loss_sum`.
    """
    output = output.to(torch.promote_types(output.dtype, torch.float32))
    if source.loss == "cross_entropy":
        if target.dim() > 1 and output.shape[:-1] == target.shape:
            output, target = output.reshape(-1, output.shape[-1]), target.reshape(-1)
        return F.cross_entropy(output, target, reduction="sum")
    if source.loss == "ctc":
        return _ctc(output, target)
    if source.loss == "contrastive":
        own = torch.arange(len(output), device=output.device)
        both = (F.cross_entropy(rows, own, reduction="sum") for rows in (output, output.T))
        return sum(both, output.new_zeros(())) / 2
    output, target = output.reshape(target.shape), target.to(output.dtype)
    if source.loss == "binary_cross_entropy":
        return F.binary_cross_entropy_with_logits(output, target, reduction="sum")
    return F.mse_loss(output, target, reduction="sum")


def _ctc(output: Tensor, target: Tensor) -> Tensor:
    """Letters aligned with frames; what does not fit into its frames costs nothing."""
    size, frames, _ = output.shape
    losses = torch.ctc_loss(  # takes lengths as numbers, which fake tensors would not have
        output.log_softmax(-1).transpose(0, 1),
        target,
        [frames] * size,
        [target.shape[1]] * size,
        reduction=_NO_REDUCTION,
        zero_infinity=True,
    )
    return losses.sum()


class Loss(Protocol):
    """A loss as a sum over the samples of a micro-batch."""

    def total(self, output: Tensor, target: Tensor) -> Tensor:
        """A scalar; over `elements`, the sum of the samples' losses."""
        ...

    def elements(self, target: Tensor) -> int:
        """Over how many elements a sample's loss is the mean."""
        ...


class SourceLoss(NamedTuple):
    """The loss that a model's source names."""

    source: ModelSource

    def total(self, output: Tensor, target: Tensor) -> Tensor:
        """See `loss_total`."""
        return loss_total(self.source, output, target)

    def elements(self, target: Tensor) -> int:
        """See `elements_per_sample`."""
        return elements_per_sample(target)


class MeanLoss(NamedTuple):
    """A user's function, which returns the mean over the samples it is given.

    Attributes:
        function: Of the model's output and the target.
    """

    function: Callable[[Tensor, Tensor], Tensor]

    def total(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean times the number of samples; the function gets a float32 output, at least.

        Raises:
            HeterpsError: The function returns no mean.
        """
        mean = self.function(output.to(torch.promote_types(output.dtype, torch.float32)), target)
        if not isinstance(mean, Tensor) or mean.numel() != 1:
            shape = tuple(mean.shape) if isinstance(mean, Tensor) else type(mean).__name__
            raise HeterpsError(
                f"loss: the function returned {shape}; expected the mean over the samples: a "
                "tensor of one number"
            )
        return mean * len(target)

    def elements(self, target: Tensor) -> int:
        """The mean is over samples."""
        return 1
