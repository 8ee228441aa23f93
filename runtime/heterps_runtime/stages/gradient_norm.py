"""Clipping by the norm of all gradients of the model (Pascanu et al., 2013, section 3.2)."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn

# As in `torch.nn.utils.clip_grad_norm_`.
_SMALL = 1e-6


def squared_norm(parameters: Iterable[nn.Parameter]) -> float:
    """Sum of the squares of all gradients, added up in float64; a GPU is waited for once."""
    norms = [
        torch.linalg.vector_norm(parameter.grad, dtype=torch.float64)
        for parameter in parameters
        if parameter.grad is not None
    ]
    return sum(norm**2 for norm in torch.stack(norms).tolist()) if norms else 0.0


def clip_gradients(
    parameters: Iterable[nn.Parameter], squared_norm: float, max_norm: float
) -> None:
    """Scales gradients, as `torch.nn.utils.clip_grad_norm_` over the whole model does.

    Args:
        parameters: Any of the model's.
        squared_norm: Of all gradients of the model, each parameter counted once.
        max_norm: Where the norm is below, gradients stay as they are.
    """
    scale_gradients(parameters, min(1.0, max_norm / (squared_norm**0.5 + _SMALL)))


def scale_gradients(parameters: Iterable[nn.Parameter], factor: float) -> None:
    """Multiplies the gradients by a number."""
    if factor == 1.0:
        return
    gradients: list[Tensor] = [p.grad for p in parameters if p.grad is not None]
    for gradient in gradients:
        gradient.mul_(factor)
