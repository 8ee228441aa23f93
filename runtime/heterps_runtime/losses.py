"""Losses as sums over samples, so that any split of a batch adds up to the same number."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from heterps_configs.model_profile import ModelSource


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
    output = output.float()
    if source.loss == "cross_entropy":
        if output.shape[:-1] == target.shape:
            output = output.movedim(-1, 1)
        elements = F.cross_entropy(output, target, reduction="none")
    else:
        output, target = output.reshape(target.shape), target.float()
        if source.loss == "binary_cross_entropy":
            elements = F.binary_cross_entropy_with_logits(output, target, reduction="none")
        else:
            elements = F.mse_loss(output, target, reduction="none")
    return elements.reshape(len(elements), -1).mean(dim=1).sum()
