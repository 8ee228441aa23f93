"""Messages: the tensors that cross a cut together, as one flat buffer for each dtype.

A cut of a click-through model carries dozens of small tensors; one transfer for each of them would
cost more than the computation. A single tensor travels as it is, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from heterps_runtime.recording import TensorSpec


def pack(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """The buffers to send, one for each dtype in order of appearance; None is left out."""
    groups: dict[torch.dtype, list[Tensor]] = {}
    for tensor in tensors:
        if tensor is not None:
            groups.setdefault(tensor.dtype, []).append(tensor)
    return [
        group[0].contiguous()
        if len(group) == 1
        else torch.cat([tensor.reshape(-1) for tensor in group])
        for group in groups.values()
    ]


def unpacked(specs: Sequence[TensorSpec | None]) -> tuple[list[Tensor], list[Tensor | None]]:
    """Buffers to receive into, and the tensors as they will be found in them.

    Args:
        specs: Of the tensors that were packed, in the same order; None for those left out.
    """
    groups: dict[torch.dtype, list[int]] = {}
    for index, spec in enumerate(specs):
        if spec is not None:
            groups.setdefault(spec.dtype, []).append(index)
    buffers: list[Tensor] = []
    tensors: list[Tensor | None] = [None] * len(specs)
    for dtype, indices in groups.items():
        shapes = {index: spec.shape for index in indices if (spec := specs[index]) is not None}
        sizes = [prod(shape) for shape in shapes.values()]
        buffers.append(torch.empty(sum(sizes), dtype=dtype))
        pieces = torch.split(buffers[-1], sizes)
        for piece, (index, shape) in zip(pieces, shapes.items(), strict=True):
            tensors[index] = piece.view(shape)
    return buffers, tensors
