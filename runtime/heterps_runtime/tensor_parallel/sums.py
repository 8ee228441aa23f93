"""Sums over a tensor-parallel group, and where autograd needs them.

What is whole on all ranks *enters* a split region: each rank uses it for its part, so that its
gradient is a sum over them. What each rank has a term of *leaves* it as the sum; the gradient of a
sum is that of each term (Shoeybi et al., Megatron-LM, 2019).
"""

from __future__ import annotations

from collections.abc import Sequence
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
        self._narrowed: list[tuple[Tensor, int, Tensor]] = []

    def forget(self) -> None:
        """A pass is over: what entered is not kept for its sake."""
        self._entered.clear()
        self._narrowed.clear()

    def enter(self, tensor: Tensor) -> Tensor:
        """The tensor for a rank's own use; several layers that read it share one sum."""
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor
        known = _known(self._entered, tensor)
        if known is not None:
            return known
        made = cast(Tensor, _Enter.apply(tensor, self.sums))  # type: ignore[no-untyped-call]
        self._entered = [*self._entered[1 - _MOST_ENTERED :], (tensor, tensor._version, made)]
        return made

    def enter_all(self, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
        """Tensors for a rank's own use, whose gradients are one sum."""
        if not torch.is_grad_enabled():
            return tensors
        entering = [tensor for tensor in tensors if tensor.requires_grad]
        if not entering:
            return tensors
        made = iter(_EnterAll.apply(self.sums, *entering))  # type: ignore[no-untyped-call]
        return [next(made) if tensor.requires_grad else tensor for tensor in tensors]

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

    def narrow(self, tensor: Tensor, start: int, size: int) -> Tensor:
        """A rank's own rows of what all have whole; several layers that read it share one sum.

        Args:
            tensor: The whole.
            start: Its first own row.
            size: How many these are.
        """
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor.narrow(0, start, size)
        known = _known(self._narrowed, tensor)
        if known is not None:
            return known
        made = cast(Tensor, _Narrow.apply(tensor, self.sums, start, size))  # type: ignore[no-untyped-call]
        self._narrowed = [*self._narrowed[1 - _MOST_ENTERED :], (tensor, tensor._version, made)]
        return made

    def put_together(self, part: Tensor, start: int, size: int) -> Tensor:
        """The whole of what ranks have rows of.

        Args:
            part: This rank's rows.
            start: The first of them.
            size: Rows of the whole.
        """
        return cast(Tensor, _PutTogether.apply(part, self.sums, start, size))  # type: ignore[no-untyped-call]

    def made_by_all(self, tensor: Tensor, is_first: bool) -> Tensor:
        """What all ranks have computed alike, from what has entered: one of them is to go on.

        Args:
            tensor: The same on all ranks.
            is_first: Whether this rank is that one: others get no gradient.
        """
        if is_first or not (tensor.requires_grad and torch.is_grad_enabled()):
            return tensor
        return cast(Tensor, _NoGradient.apply(tensor))  # type: ignore[no-untyped-call]


def _known(found: list[tuple[Tensor, int, Tensor]], tensor: Tensor) -> Tensor | None:
    """What was made of a tensor, unless somebody has written into it since."""
    for known, version, made in found:
        if known is tensor and version == tensor._version:
            return made
    return None


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


class _EnterAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, sums: GroupSums, *tensors: Tensor) -> tuple[Tensor, ...]:
        ctx.sums = sums
        return tuple(tensor.view_as(tensor) for tensor in tensors)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        found: list[Tensor] = list(gradients)
        for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
            own = [index for index, each in enumerate(gradients) if each.dtype == dtype]
            total = ctx.sums.sum(torch.cat([gradients[index].reshape(-1) for index in own]))
            parts = total.split([gradients[index].numel() for index in own])
            for index, part in zip(own, parts, strict=True):
                found[index] = part.view(gradients[index].shape)
        return None, *found


class _Narrow(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor, sums: GroupSums, start: int, size: int) -> Tensor:
        ctx.sums, ctx.start, ctx.shape = sums, start, tensor.shape
        # A copy: a view would keep the whole tensor for the backward pass.
        return tensor.narrow(0, start, size).clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        (part,) = gradients
        whole = part.new_zeros(ctx.shape)
        whole.narrow(0, ctx.start, len(part)).copy_(part)
        return ctx.sums.sum(whole), None, None, None


class _PutTogether(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, sums: GroupSums, start: int, size: int) -> Tensor:
        ctx.start, ctx.own = start, len(part)
        whole = part.new_zeros((size, *part.shape[1:]))
        whole.narrow(0, start, ctx.own).copy_(part)
        return sums.sum(whole)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return gradients[0].narrow(0, ctx.start, ctx.own).contiguous(), None, None, None


class _NoGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        return torch.zeros_like(gradients[0])
