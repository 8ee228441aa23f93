"""Sums of parts of gradients, where ranks hold unlike parts of a parameter.

Each region is copied, in pieces of `REDUCE_COPY_BYTES` at most, summed, and copied back. All that
happens when the sums are waited for, one piece after the other: no more than a piece is there
twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heterps_envs.layer_costs.memory_rule import REDUCE_COPY_BYTES
from heterps_runtime.transport.gradient_sums import has_gradient
from heterps_runtime.transport.messenger import Work


class RegionRing(NamedTuple):
    """Regions that the same ranks sum.

    Attributes:
        start: Begins to replace a tensor by its sum over these ranks.
        listens: Another rank of the own group adds the same numbers: this one adds none.
        regions: Each a parameter, and what gives the view of a region in its gradient.
    """

    start: Callable[[Tensor], Work]
    listens: bool
    regions: Sequence[tuple[nn.Parameter, Callable[[Tensor], Tensor]]]


class RegionSum:
    """The sums of one bucket; `finish` makes them.

    Args:
        rings: Of the own rank, in the order that all ranks have in common. Nothing adds to the
            gradients of their parameters any more.
    """

    def __init__(self, rings: Sequence[RegionRing]) -> None:
        self._rings = rings

    def finish(self) -> None:
        """Sums; then what no rank has used has no gradient."""
        parameters = list({id(p): p for ring in self._rings for p, _ in ring.regions}.values())
        flags = dict(zip(map(id, parameters), has_gradient(parameters), strict=True))
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        counts: dict[int, Tensor] = {}
        for ring in self._rings:
            own = torch.stack([flags[id(parameter)] for parameter, _ in ring.regions])
            for piece in _pieces(ring):
                flat = torch.cat([view.reshape(-1) for view in piece])
                _sum(flat, ring)
                parts = torch.split(flat, [view.numel() for view in piece])
                for view, part in zip(piece, parts, strict=True):
                    view.copy_(part.view_as(view))
            _sum(own, ring)
            counts |= {id(p): count for (p, _), count in zip(ring.regions, own, strict=True)}
        for parameter in parameters:
            if not counts[id(parameter)]:
                parameter.grad = None


def _sum(tensor: Tensor, ring: RegionRing) -> None:
    if ring.listens:
        tensor.zero_()
    ring.start(tensor).wait()


def _pieces(ring: RegionRing) -> Iterator[list[Tensor]]:
    """Views of one format after another, up to the bound."""
    piece: list[Tensor] = []
    room = 0
    for parameter, view_of in ring.regions:
        assert parameter.grad is not None
        view = view_of(parameter.grad)
        rows = max(1, REDUCE_COPY_BYTES * (len(view) if view.dim() else 1) // max(view.nbytes, 1))
        for part in torch.split(view, rows) if view.dim() else (view,):
            if piece and (part.nbytes > room or part.dtype != piece[0].dtype):
                yield piece
                piece = []
            if not piece:
                room = REDUCE_COPY_BYTES
            piece.append(part)
            room -= part.nbytes
    if piece:
        yield piece
