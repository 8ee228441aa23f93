"""Messages: the tensors that cross a cut together, as one flat buffer for each dtype.

A cut of a click-through model carries dozens of small tensors; one transfer for each of them would
cost more than the computation. A single tensor travels as it is, without a copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

import torch
from torch import Tensor

from heterps_runtime.models.recording import TensorSpec


def pack(tensors: Sequence[Tensor | None]) -> list[Tensor]:
    """The buffers to send, one for each dtype in order of appearance; None is left out."""
    if len(tensors) == 1:
        (only,) = tensors
        return [] if only is None else [only.contiguous()]
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


class Layout:
    """Where the tensors of one kind of message lie in its buffers; made once, used every time.

    Args:
        specs: Of the tensors that are packed, in the same order; None for those left out.
        device: Where the buffers are.
    """

    def __init__(
        self, specs: Sequence[TensorSpec | None], device: torch.device | str = "cpu"
    ) -> None:
        self._num_tensors, self._device = len(specs), device
        self._is_single = len(specs) == 1 and specs[0] is not None
        groups: dict[torch.dtype, list[int]] = {}
        for index, spec in enumerate(specs):
            if spec is not None:
                groups.setdefault(spec.dtype, []).append(index)
        self._buffers: list[tuple[torch.dtype, list[int], list[tuple[int, tuple[int, ...]]]]] = []
        for dtype, indices in groups.items():
            shapes = [(index, spec.shape) for index in indices if (spec := specs[index])]
            self._buffers.append((dtype, [prod(shape) for _, shape in shapes], shapes))

    @property
    def num_bytes(self) -> int:
        """Bytes of all buffers."""
        return sum(dtype.itemsize * sum(sizes) for dtype, sizes, _ in self._buffers)

    def allocate(self) -> tuple[list[Tensor], list[Tensor | None]]:
        """Buffers to receive into, and the tensors as they will be found in them."""
        if self._is_single:
            dtype, _, ((_, shape),) = self._buffers[0]
            only = torch.empty(shape, dtype=dtype, device=self._device)
            return [only], [only]
        buffers: list[Tensor] = []
        tensors: list[Tensor | None] = [None] * self._num_tensors
        for dtype, sizes, shapes in self._buffers:
            buffers.append(torch.empty(sum(sizes), dtype=dtype, device=self._device))
            pieces = torch.split(buffers[-1], sizes)
            for piece, (index, shape) in zip(pieces, shapes, strict=True):
                tensors[index] = piece.view(shape)
        return buffers, tensors
