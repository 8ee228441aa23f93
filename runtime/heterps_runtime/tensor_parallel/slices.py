"""Which part of a tensor a rank of a tensor-parallel group holds."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class TensorSlice(NamedTuple):
    """The part of a tensor that one rank holds.

    Attributes:
        shape: Of the whole tensor.
        dim: Along which it is split.
        ranges: Start and stop along `dim`; several where sections are packed (query, key, value).
    """

    shape: tuple[int, ...]
    dim: int
    ranges: tuple[tuple[int, int], ...]

    @property
    def local_shape(self) -> tuple[int, ...]:
        """Of the part."""
        size = sum(stop - start for start, stop in self.ranges)
        return (*self.shape[: self.dim], size, *self.shape[self.dim + 1 :])

    def of(self, whole: Tensor) -> Tensor:
        """A contiguous copy of the part."""
        assert tuple(whole.shape) == self.shape, (tuple(whole.shape), self.shape)
        parts = [whole.narrow(self.dim, start, stop - start) for start, stop in self.ranges]
        if len(parts) == 1:
            return parts[0].clone(memory_format=torch.contiguous_format)
        return torch.cat(parts, dim=self.dim)

    def put(self, part: Tensor, whole: Tensor) -> None:
        """Writes the part into its place of a whole tensor."""
        position = 0
        for start, stop in self.ranges:
            size = stop - start
            whole.narrow(self.dim, start, size).copy_(part.narrow(self.dim, position, size))
            position += size
