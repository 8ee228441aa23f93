"""Optimizer state that replicas share: each steps its part of the parameters, and hands it out.

ZeRO, stage 1 (Rajbhandari et al., SC 2020, section 5.1). The parts are runs of rows of each
parameter, so that a checkpoint knows them by their place in the whole one, and so that all replicas
hold about the same number of elements.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heterps_runtime.tensor_parallel.slices import TensorSlice
from heterps_runtime.transport.messenger import Messenger


class Shard(NamedTuple):
    """The part of a parameter that a rank steps.

    Attributes:
        name: Of the parameter in the whole model.
        rank: Who steps it.
        dim: Along which the parameter is divided.
        start, stop: Its rows there, of what the replicas hold.
    """

    name: str
    rank: int
    dim: int
    start: int
    stop: int

    def of(self, tensor: Tensor) -> Tensor:
        """A view of the part."""
        return tensor.narrow(self.dim, self.start, self.stop - self.start)

    def place(self, shape: Sequence[int], held: TensorSlice | None) -> TensorSlice:
        """Where the part is in the whole parameter.

        Args:
            shape: Of what the replicas hold.
            held: Where that is a slice of the parameter, its place.
        """
        if held is None:
            own = ((self.start, self.stop),) if self.start < self.stop else ()
            return TensorSlice(tuple(shape), self.dim, own)
        assert held.dim == self.dim
        ranges, before = [], 0
        for start, stop in held.ranges:
            first, last = max(self.start - before, 0), min(self.stop - before, stop - start)
            if first < last:
                ranges.append((start + first, start + last))
            before += stop - start
        return TensorSlice(held.shape, held.dim, tuple(ranges))


def shards_of(
    parameters: Mapping[str, Tensor], slices: Mapping[str, TensorSlice], ranks: Sequence[int]
) -> list[Shard]:
    """Divides parameters over ranks, as evenly as whole rows allow; the same on all of them.

    Args:
        parameters: What all the ranks hold, by name, in one order.
        slices: The places of those that are slices of the whole model's.
        ranks: Of the replicas.
    """
    total, before = sum(tensor.numel() for tensor in parameters.values()), 0
    found = []
    for name, tensor in parameters.items():
        dim = slices[name].dim if name in slices else 0
        rows = tensor.shape[dim]
        row = tensor.numel() / rows if rows else 0
        ends = [
            # Where the rank's part of all elements ends, in rows of this parameter.
            min(max(round((total * (index + 1) / len(ranks) - before) / row), 0), rows)
            if row
            else 0
            for index in range(len(ranks))
        ]
        for rank, start, stop in zip(ranks, [0, *ends], ends, strict=False):
            if start < stop:
                found.append(Shard(name, rank, dim, start, stop))
        before += tensor.numel()
    return found


class ShardedState:
    """What one rank steps of the parameters whose state is sharded.

    Args:
        parameters: Of the rank, by name.
        slices: The places of those that are slices.
        buckets: For each bucket of such parameters, its ranks and the names in it.
        rank: The own one.

    Attributes:
        stepped: The own parts, by name: parameters that share the memory of the whole ones. Of
            some a rank has none; it still knows what state they have.
        places: Where they are in the whole model's parameters.
    """

    def __init__(
        self,
        parameters: Mapping[str, nn.Parameter],
        slices: Mapping[str, TensorSlice],
        buckets: Mapping[int, tuple[tuple[int, ...], Sequence[str]]],
        rank: int,
    ) -> None:
        self._parameters, self._rank = parameters, rank
        self._shards: dict[int, list[Shard]] = {}
        self.ranks: dict[int, tuple[int, ...]] = {}
        self.stepped: dict[str, nn.Parameter] = {}
        self.places: dict[str, TensorSlice] = {}
        self._own: dict[str, Shard] = {}
        # Buckets that have been stepped, and not been handed out since.
        self._stepped_buckets: set[int] = set()
        for index, (ranks, names) in buckets.items():
            # A number alone cannot be divided.
            held = {n: p for n in names if (p := parameters[n]).requires_grad and p.dim()}
            self._shards[index], self.ranks[index] = shards_of(held, slices, ranks), ranks
            nothing = {s.name: Shard(s.name, rank, s.dim, 0, 0) for s in self._shards[index]}
            own = {s.name: s for s in self._shards[index] if s.rank == rank}
            for name, shard in {**nothing, **own}.items():
                self._own[name] = shard
                self.stepped[name] = nn.Parameter(shard.of(parameters[name].detach()))
                self.places[name] = shard.place(parameters[name].shape, slices.get(name))

    @property
    def names(self) -> frozenset[str]:
        """Parameters whose state is sharded."""
        return frozenset(shard.name for shards in self._shards.values() for shard in shards)

    def is_first(self, name: str) -> bool:
        """Whether this rank has the first part of a parameter."""
        own = self._own.get(name)
        return own is not None and own.start == 0 < own.stop

    @property
    def not_handed_out(self) -> frozenset[str]:
        """Parameters of which each replica has only its own part as it is since the last step."""
        found = (self._shards[index] for index in self._stepped_buckets)
        return frozenset(shard.name for shards in found for shard in shards)

    def look_anew(self) -> None:
        """The parameters have other memory: the parts become views of that."""
        for name, part in self.stepped.items():
            part.data = self._own[name].of(self._parameters[name].detach())

    def take_gradients(self) -> None:
        """The own parts get their parts of the gradients, without a copy."""
        for name, part in self.stepped.items():
            gradient = self._parameters[name].grad
            part.grad = None if gradient is None else self._own[name].of(gradient)
        self._stepped_buckets.update(self._shards)

    def gather(self, index: int, messenger: Messenger) -> None:
        """All replicas get what the others have stepped of one bucket; all of them call it."""
        by_rank: dict[int, list[Tensor]] = {rank: [] for rank in self.ranks[index]}
        for shard in self._shards[index]:
            by_rank[shard.rank].append(shard.of(self._parameters[shard.name].detach()))
        formats = {tensor.dtype for parts in by_rank.values() for tensor in parts}
        for dtype in sorted(formats, key=str):
            parts = {
                rank: [tensor for tensor in found if tensor.dtype == dtype]
                for rank, found in by_rank.items()
            }
            self._gather(parts, messenger, self.ranks[index])
        self._stepped_buckets.discard(index)

    def _gather(
        self, parts: Mapping[int, Sequence[Tensor]], messenger: Messenger, ranks: tuple[int, ...]
    ) -> None:
        own = parts[self._rank]
        flat = torch.cat([tensor.reshape(-1) for tensor in own]) if own else None
        example = next(tensor for found in parts.values() for tensor in found)
        largest = max(sum(tensor.numel() for tensor in found) for found in parts.values())
        gathered = messenger.gather(_padded(flat, largest, example), ranks)
        for rank, row in zip(ranks, gathered, strict=True):
            start = 0
            for tensor in parts[rank] if rank != self._rank else ():
                tensor.copy_(row[start : start + tensor.numel()].view(tensor.shape))
                start += tensor.numel()


def _padded(flat: Tensor | None, size: int, example: Tensor) -> Tensor:
    """As many numbers as the rank with most has."""
    if flat is not None and len(flat) == size:
        return flat
    found = torch.zeros(size, dtype=example.dtype, device=example.device)
    if flat is not None:
        found[: len(flat)] = flat
    return found
