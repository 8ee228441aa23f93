"""Backward passes from cut to cut: what is received can be differentiated, what goes back."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.autograd import Variable

_ENGINE = Variable._execution_engine


def leaves(tensors: Sequence[Tensor | None], requires_grad: tuple[bool, ...]) -> tuple[Tensor, ...]:
    """Received activations, which get gradients where they need one."""
    return tuple(
        tensor.requires_grad_(needs_one)
        for tensor, needs_one in zip(tensors, requires_grad, strict=True)
        if tensor is not None
    )


def run_backward(outputs: tuple[Tensor, ...], gradients: tuple[Tensor | None, ...]) -> None:
    """The backward pass from some outputs; none where all layers up to the cut are frozen.

    It calls the engine itself: `torch.autograd.backward` checks shapes that are right by
    construction, which takes as long as the backward pass of a small layer.
    """
    pairs = [
        (output, gradient)
        for output, gradient in zip(outputs, gradients, strict=True)
        if gradient is not None and output.requires_grad
    ]
    if pairs:
        roots, seeds = zip(*pairs, strict=True)
        _ENGINE.run_backward(
            roots, seeds, False, False, (), allow_unreachable=True, accumulate_grad=True
        )


def cut_gradient(tensor: Tensor) -> Tensor | None:
    """What goes back over the cut: a tensor that no output depends on has a gradient of zeros."""
    if not tensor.requires_grad:
        return None
    return torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
