"""The job's optimizer, with the usual learning rate of each kind."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import nn

from heterps_configs.documents.job import Optimizer
from heterps_runtime.stages.gradient_norm import scale_gradients
from heterps_runtime.stages.loss_scale import LossScale
from heterps_runtime.stages.master_weights import MasterWeights, with_master_weights

# AdamW divides by the size of the gradient: where that is nearly zero, the rounding of its sum
# decides the direction of the update. At 1e-3 two correct runs that add in different orders drift
# apart within a few steps.
LEARNING_RATE: dict[str, float] = {"adamw": 3e-4, "sgd": 1e-2, "sgd-momentum": 1e-2}


def build_optimizer(
    name: Optimizer, parameters: Iterable[nn.Parameter], learning_rate: float | None = None
) -> torch.optim.Optimizer | None:
    """The optimizer of a job over some parameters; None where there are none to train.

    Parameters in a format smaller than float32 are updated through float32 copies.

    Args:
        name: Kind of optimizer.
        parameters: What it updates; frozen ones (`requires_grad` is False) are left out.
        learning_rate: None for the kind's usual one.
    """
    owned = [parameter for parameter in parameters if parameter.requires_grad]
    if not owned:
        return None
    rate = LEARNING_RATE[name] if learning_rate is None else learning_rate

    def make(float32: list[nn.Parameter]) -> torch.optim.Optimizer:
        if name == "adamw":
            return torch.optim.AdamW(float32, lr=rate)
        return torch.optim.SGD(float32, lr=rate, momentum=0.9 if name == "sgd-momentum" else 0.0)

    return with_master_weights(owned, make)


def use_loss_scale(optimizer: torch.optim.Optimizer | None, loss_scale: LossScale | None) -> None:
    """Makes a loss scale, where there is one, part of the optimizer's state."""
    if isinstance(optimizer, MasterWeights) and loss_scale is not None:
        optimizer.use(loss_scale)


def step_scaled(
    optimizer: torch.optim.Optimizer, parameters: Iterable[nn.Parameter], factor: float
) -> None:
    """A step with multiplied gradients.

    Args:
        optimizer: Over the parameters.
        parameters: Their gradients are changed where the optimizer keeps no float32 copies.
        factor: What gradients are multiplied by, in float32.
    """
    if isinstance(optimizer, MasterWeights):
        optimizer.gradient_factor = factor
    else:
        scale_gradients(parameters, factor)
    optimizer.step()
