"""Sums of gradients over ranks, started here and waited for later.

The gradients of a bucket, and last a flag for each parameter (has it a gradient?), are summed in
pieces. A large gradient is a piece of its own and is summed where it lies. Small ones are copied
one after another, and become parts of that copy at once: so nothing is copied back, and of what is
copied only one piece, `REDUCE_COPY_BYTES` at most, is there twice for a moment. All ranks cut the
same pieces in the same order, and a sum is the same on all of them, bit by bit.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from heterps_envs.layer_costs.memory_rule import LARGE_GRADIENT_BYTES, REDUCE_COPY_BYTES
from heterps_runtime.transport.messenger import Work


class GradientSum:
    """The sum of the gradients of some parameters, on its way.

    Args:
        parameters: On every rank the same ones, in one order; there is at least one. Nothing adds
            to their gradients any more.
        start: Begins to replace a tensor by its sum over ranks.
    """

    def __init__(self, parameters: Sequence[nn.Parameter], start: Callable[[Tensor], Work]) -> None:
        self._parameters = parameters
        flags = has_gradient(parameters)
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        self._works = [
            start(_flat_gradient(parameter)) for parameter in parameters if _is_large(parameter)
        ]
        pieces = _pieces([parameter for parameter in parameters if not _is_large(parameter)])
        for piece in pieces[:-1]:
            self._works.append(start(_gathered(piece)))
        if pieces and pieces[-1][0].dtype == flags.dtype:
            last = _gathered(pieces[-1], flags)
            self._works.append(start(last))
            self._flags = last[-len(flags) :]
            return
        for piece in pieces[-1:]:
            self._works.append(start(_gathered(piece)))
        self._works.append(start(flags))
        self._flags = flags

    def finish(self) -> None:
        """Waits; then the gradients are sums, and what no rank used has none."""
        finish_sums([self])

    def wait(self) -> Tensor:
        """Waits for the sums; (N,) for each parameter, how many ranks have used it."""
        for work in self._works:
            work.wait()
        return self._flags

    def drop(self, counts: Sequence[float]) -> None:
        """Parameters that no rank has used have no gradient."""
        for parameter, count in zip(self._parameters, counts, strict=True):
            if not count:
                parameter.grad = None


def finish_sums(sums: Sequence[GradientSum]) -> None:
    """`finish` of several sums; a GPU is waited for once."""
    if not sums:
        return
    flags = [begun.wait().float() for begun in sums]
    counts = torch.cat(flags).tolist()
    for begun, own in zip(sums, flags, strict=True):
        begun.drop(counts[: len(own)])
        del counts[: len(own)]


def has_gradient(parameters: Sequence[nn.Parameter]) -> Tensor:
    """(N,) 1 where a parameter has a gradient, else 0."""
    return torch.tensor(
        [parameter.grad is not None for parameter in parameters],
        dtype=parameters[-1].dtype,
        device=parameters[-1].device,
    )


def _pieces(parameters: Sequence[nn.Parameter]) -> list[list[nn.Parameter]]:
    """Neighbours of one dtype, up to the bound."""
    pieces: list[list[nn.Parameter]] = []
    room = 0
    for parameter in parameters:
        if not pieces or parameter.nbytes > room or parameter.dtype != pieces[-1][0].dtype:
            pieces.append([])
            room = REDUCE_COPY_BYTES
        pieces[-1].append(parameter)
        room -= parameter.nbytes
    return pieces


def _is_large(parameter: nn.Parameter) -> bool:
    """Whether one more all-reduce costs less than a copy."""
    return parameter.nbytes >= LARGE_GRADIENT_BYTES


def _flat_gradient(parameter: nn.Parameter) -> Tensor:
    assert parameter.grad is not None
    if not parameter.grad.is_contiguous():
        parameter.grad = parameter.grad.contiguous()
    return parameter.grad.view(-1)


def _gathered(parameters: Sequence[nn.Parameter], *behind: Tensor) -> Tensor:
    """One tensor of all gradients, which become parts of it, and of what stands behind them."""
    gradients = [
        parameter.grad.reshape(-1) for parameter in parameters if parameter.grad is not None
    ]
    flat = torch.cat([*gradients, *behind])
    parts = torch.split(flat, [len(gradient) for gradient in (*gradients, *behind)])
    for parameter, part in zip(parameters, parts, strict=False):
        parameter.grad = part.view_as(parameter)
    return flat
