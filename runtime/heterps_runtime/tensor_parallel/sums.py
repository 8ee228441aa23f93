"""Sums over a tensor-parallel group, and where autograd needs them.

What is whole on all ranks *enters* a split region: each rank uses it for its part, so that its
gradient is a sum over them. What each rank has a term of *leaves* it as the sum; the gradient of a
sum is that of each term (Shoeybi et al., Megatron-LM, 2019).
"""

from __future__ import annotations

from typing import Any, Protocol, cast

import torch
from torch import Tensor

# Tensors that regions of one pass share: queries read one, keys and values of another sequence
# a second, experts two.
_MOST_ENTERED = 4


class GroupSums(Protocol):
    """Adds up over the ranks of a group, which all call it in the same order."""

    def sum(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' tensors; the one given stays as it is. Unknown to autograd."""
        ...

    def max(self, tensor: Tensor) -> Tensor:
        """The largest numbers of all ranks' tensors, likewise."""
        ...


class GroupPass:
    """A rank's passes through split regions.

    Attributes:
        sums: Over the group.
    """

    def __init__(self, sums: GroupSums) -> None:
        self.sums = sums
        self._entered: list[tuple[Tensor, int, Tensor]] = []

    def forget(self) -> None:
        """A pass is over: what entered is not kept for its sake."""
        self._entered.clear()

    def enter(self, tensor: Tensor) -> Tensor:
        """The tensor for a rank's own use; several layers that read it share one sum."""
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor
        for known, version, made in self._entered:
            if known is tensor and version == tensor._version:
                return made
        made = cast(Tensor, _Enter.apply(tensor, self.sums))  # type: ignore[no-untyped-call]
        self._entered = [*self._entered[1 - _MOST_ENTERED :], (tensor, tensor._version, made)]
        return made

    def leave(self, tensor: Tensor) -> Tensor:
        """The sum of all ranks' terms."""
        return cast(Tensor, _Leave.apply(tensor, self.sums))  # type: ignore[no-untyped-call]

    def gather(self, part: Tensor, start: int, size: int) -> Tensor:
        """The whole of what is split along its last dimension.

        Args:
            part: This rank's numbers.
            start: Where they begin.
            size: Of the whole dimension.
        """
        return cast(Tensor, _Gather.apply(part, self.sums, start, size))  # type: ignore[no-untyped-call]


class _Enter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sums: GroupSums) -> Tensor:
        ctx.sums = sums
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return ctx.sums.sum(gradients[0].contiguous()), None


class _Leave(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sums: GroupSums) -> Tensor:
        return sums.sum(tensor.contiguous())

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0], None


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, sums: GroupSums, start: int, size: int) -> Tensor:
        ctx.start, ctx.own = start, part.shape[-1]
        whole = part.new_zeros((*part.shape[:-1], size))
        whole.narrow(-1, start, ctx.own).copy_(part)
        return sums.sum(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].narrow(-1, ctx.start, ctx.own).contiguous(), None, None, None
