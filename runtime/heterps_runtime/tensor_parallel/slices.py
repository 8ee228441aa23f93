"""Which part of a tensor a rank of a tensor-parallel group holds."""

from __future__ import annotations

from collections.abc import Sequence
from math import floor
from typing import NamedTuple

import torch
from torch import Tensor


class GroupSlice(NamedTuple):
    """A rank's place in its group.

    Attributes:
        rank: Position in the group.
        shares: Of each rank; they sum to 1.
    """

    rank: int
    shares: tuple[float, ...]

    @property
    def degree(self) -> int:
        """Ranks of the group."""
        return len(self.shares)


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


def unit_ranges(num_units: int, shares: Sequence[float]) -> tuple[tuple[int, int], ...]:
    """Start and stop of each rank's units: whole ones by largest remainder, at least one each.

    Args:
        num_units: At least as many as there are ranks.
        shares: Of each rank.
    """
    assert num_units >= len(shares)
    total = sum(shares)
    wanted = [share / total * num_units for share in shares]
    # Equal shares of a number that divides are whole, whatever the rounding of their sum.
    counts = [max(1, floor(each + 1e-9)) for each in wanted]
    while (missing := num_units - sum(counts)) != 0:
        step = 1 if missing > 0 else -1
        able = [rank for rank, count in enumerate(counts) if step > 0 or count > 1]
        # The first of those that lack (or exceed) most.
        chosen = max(able, key=lambda rank: (step * (wanted[rank] - counts[rank]), -rank))
        counts[chosen] += step
    ranges, start = [], 0
    for count in counts:
        ranges.append((start, start + count))
        start += count
    return tuple(ranges)
