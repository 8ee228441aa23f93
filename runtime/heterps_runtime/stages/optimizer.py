"""The job's optimizer, with the usual learning rate of each kind."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from heterps_configs.documents.job import Optimizer
from heterps_runtime.stages.gradient_norm import scale_gradients
from heterps_runtime.stages.loss_scale import LossScale
from heterps_runtime.stages.master_weights import MasterWeights, with_master_weights
from heterps_runtime.training.parameter_groups import grouped
from heterps_runtime.training.program import OptimizerFactory, TrainingProgram

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
    return with_master_weights(owned, _usual(name, learning_rate)) if owned else None


def program_optimizer(
    program: TrainingProgram,
    usual: tuple[Optimizer, float | None],
    stepped: Mapping[str, nn.Parameter],
    shapes: Mapping[str, tuple[int, ...]],
) -> torch.optim.Optimizer | None:
    """The optimizer of a training program; None where there is nothing to train.

    Args:
        program: Its own optimizer, where it has one, and its groups of parameters.
        usual: The job's optimizer and its learning rate, which is the one else.
        stepped: What it updates, by name; frozen parameters are left out.
        shapes: Of all parameters of the model.
    """
    owned = {name: parameter for name, parameter in stepped.items() if parameter.requires_grad}
    if not owned:
        return None
    factory, rule = program.optimizer or _usual(*usual), program.parameter_groups

    def make(float32: list[nn.Parameter]) -> torch.optim.Optimizer:
        if rule is None:
            return factory(float32)
        return factory(grouped(rule, dict(zip(owned, float32, strict=True)), shapes))

    return with_master_weights(list(owned.values()), make)


def _usual(name: Optimizer, learning_rate: float | None) -> OptimizerFactory:
    rate = LEARNING_RATE[name] if learning_rate is None else learning_rate

    def make(parameters: list[Any]) -> torch.optim.Optimizer:
        if name == "adamw":
            return torch.optim.AdamW(parameters, lr=rate)
        momentum = 0.9 if name == "sgd-momentum" else 0.0
        return torch.optim.SGD(parameters, lr=rate, momentum=momentum)

    return make


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
