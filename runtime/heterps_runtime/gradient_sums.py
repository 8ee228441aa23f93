"""Sums of gradients over ranks, in pieces: the copies on their way never take more than a bound.

The gradients of a bucket stand one behind the other, and last a flag for each parameter: has it a
gradient? A piece is a run of these numbers, wherever parameters begin. It is copied, summed by one
all-reduce, and copied back. Two pieces are on their way at a time: while one is summed the next is
filled, so that latency and copies are paid about once. All ranks cut the same pieces, and a sum is
the same on all of them, bit by bit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heterps_envs.memory_rule import REDUCE_COPY_BYTES
from heterps_runtime.messenger import Work

PIECES_AT_A_TIME = 2


class _Piece(NamedTuple):
    copy: Tensor
    parts: list[Tensor]
    work: Work


def sum_gradients(parameters: Sequence[nn.Parameter], start: Callable[[Tensor], Work]) -> None:
    """Replaces the gradients of some parameters by their sums; what nobody used keeps none.

    Args:
        parameters: On every rank the same ones, in one order; there is at least one.
        start: Begins to replace a tensor by its sum over ranks.
    """
    flags = has_gradient(parameters)
    for parameter in parameters:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
    vectors = [p.grad.view(-1) for p in parameters if p.grad is not None]
    pending: deque[_Piece] = deque()
    for parts in _pieces([*vectors, flags], numbers_in_piece(flags.element_size())):
        if len(pending) == PIECES_AT_A_TIME:
            _finish(pending.popleft())
        copy = torch.cat(parts)
        pending.append(_Piece(copy, parts, start(copy)))
        del copy  # else it would outlive its piece
    while pending:
        _finish(pending.popleft())
    for parameter, count in zip(parameters, flags.tolist(), strict=True):
        if not count:
            parameter.grad = None


def numbers_in_piece(element_bytes: int) -> int:
    """Numbers of a piece; the last one may have fewer."""
    return max(1, REDUCE_COPY_BYTES // PIECES_AT_A_TIME // element_bytes)


def has_gradient(parameters: Sequence[nn.Parameter]) -> Tensor:
    """(N,) 1 where a parameter has a gradient, else 0."""
    return torch.tensor(
        [parameter.grad is not None for parameter in parameters],
        dtype=parameters[0].dtype,
        device=parameters[0].device,
    )


def flatten_gradients(parameters: Sequence[nn.Parameter]) -> Tensor:
    """All that `sum_gradients` sums, in one tensor: for checks in one process."""
    vectors = [(torch.zeros_like(p) if p.grad is None else p.grad).reshape(-1) for p in parameters]
    return torch.cat([*vectors, has_gradient(parameters)])


def _pieces(vectors: Sequence[Tensor], most: int) -> Iterator[list[Tensor]]:
    """Runs of at most `most` numbers, as parts of the vectors."""
    parts: list[Tensor] = []
    room = most
    for vector in vectors:
        begin = 0
        while begin < len(vector):
            part = vector[begin : begin + room]
            parts.append(part)
            begin, room = begin + len(part), room - len(part)
            if room == 0:
                yield parts
                parts, room = [], most
    if parts:
        yield parts


def _finish(piece: _Piece) -> None:
    """Waits for a sum and puts it where it belongs."""
    piece.work.wait()
    sums = torch.split(piece.copy, [len(part) for part in piece.parts])
    for part, total in zip(piece.parts, sums, strict=True):
        part.copy_(total)
