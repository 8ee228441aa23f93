"""Collectives over the processes of a host, with even and uneven parts: what they do, and seconds.

Gloo gathers and scatters equal parts only. So parts are filled up to the largest one (padded), or
each process broadcasts, or is sent the sum of, its own part (grouped). An all-to-all takes uneven
parts as they are.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple, get_args

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_configs.documents.cluster import CollectiveKind
from heterps_runtime.transport.communication import Communicator
from heterps_runtime.transport.lost_ranks import talking

# Bytes of float32 tensors. Times of each size, and the first ones that set up connections.
TENSOR_BYTES = (4096, 262_144, 4_194_304)
NUM_CALLS, NUM_WARM_UPS = 9, 2


class CollectiveTimes(NamedTuple):
    """Seconds of one kind over the first `devices` processes.

    Attributes:
        seconds: For even and for uneven parts, by the bytes that count: see `counted_bytes`.
    """

    kind: CollectiveKind
    devices: int
    seconds: dict[str, dict[int, list[float]]]


class Parts(NamedTuple):
    """A tensor dealt out to the processes of a group.

    Attributes:
        sizes: Elements of each.
        position: Of this process.
        group: The processes, by rank.
        ranks: Their numbers in the world.
    """

    sizes: tuple[int, ...]
    position: int
    group: dist.ProcessGroup
    ranks: tuple[int, ...]

    def split(self, whole: Tensor) -> tuple[Tensor, ...]:
        """The parts of a tensor."""
        return torch.split(whole, list(self.sizes))


def all_reduce(whole: Tensor, parts: Parts) -> Tensor:
    """The sum, in place."""
    dist.all_reduce(whole, group=parts.group)
    return whole


def padded_gather(own: Tensor, parts: Parts) -> Tensor:
    """The whole tensor of everybody's part."""
    most = max(parts.sizes)
    filled = torch.cat([own, own.new_empty(most - len(own))])
    found = [own.new_empty(most) for _ in parts.sizes]
    dist.all_gather(found, filled, group=parts.group)
    return torch.cat([part[:size] for part, size in zip(found, parts.sizes, strict=True)])


def grouped_gather(own: Tensor, parts: Parts) -> Tensor:
    """The same by a broadcast of each part."""
    whole = own.new_empty(sum(parts.sizes))
    pieces = parts.split(whole)
    pieces[parts.position].copy_(own)
    _wait(
        dist.broadcast(piece, rank, group=parts.group, async_op=True)
        for piece, rank in zip(pieces, parts.ranks, strict=True)
    )
    return whole


def padded_scatter(whole: Tensor, parts: Parts) -> Tensor:
    """This process's part of the sum of everybody's tensor."""
    most = max(parts.sizes)
    rows = whole.new_zeros(len(parts.sizes), most)
    for row, part in zip(rows, parts.split(whole), strict=True):
        row[: len(part)] = part
    own = whole.new_empty(most)
    dist.reduce_scatter_tensor(own, rows.view(-1), group=parts.group)
    return own[: parts.sizes[parts.position]]


def grouped_scatter(whole: Tensor, parts: Parts) -> Tensor:
    """The same by a reduce of each part; what else is in the tensor is lost."""
    pieces = parts.split(whole)
    _wait(
        dist.reduce(piece, rank, group=parts.group, async_op=True)
        for piece, rank in zip(pieces, parts.ranks, strict=True)
    )
    return pieces[parts.position]


def all_to_all(own: Tensor, parts: Parts) -> Tensor:
    """Of this process's rows its pieces go to all, and theirs come: rows become columns.

    Args:
        own: As many elements as this process's part times the number of columns, which is the
            number of rows.
        parts: Of the rows, and of the columns.
    """
    mine, total = parts.sizes[parts.position], sum(parts.sizes)
    columns = torch.split(own.view(mine, total), list(parts.sizes), dim=1)
    blocks = [block.reshape(-1) for block in columns]
    found = own.new_empty(total * mine)
    sizes = [mine * size for size in parts.sizes]
    dist.all_to_all_single(found, torch.cat(blocks), sizes, sizes, group=parts.group)
    return found.view(total, mine)


def _wait(works: Iterator[dist.Work | None]) -> None:
    for work in list(works):
        assert work is not None
        work.wait()


def counted_bytes(kind: CollectiveKind, parts: Parts, width: int = 1) -> int:
    """Bytes by which a kind is priced: of the tensor, or the largest part for everybody."""
    if kind in ("all-gather", "reduce-scatter", "all-to-all"):
        return 4 * width * len(parts.sizes) * max(parts.sizes)
    return 4 * width * sum(parts.sizes)


def measured_collectives(
    communicator: Communicator, begin: Callable[[str], None]
) -> list[CollectiveTimes]:
    """Every kind over the first 2, 3, .. processes. All of them call this."""
    world = communicator.world_size
    groups = communicator.groups([tuple(range(count)) for count in range(2, world + 1)])
    found = []
    for ranks, group in groups.items():
        begin(f"collectives of {len(ranks)} processes")
        for kind in get_args(CollectiveKind):
            seconds = {
                name: _seconds(communicator, kind, group, ranks, weights)
                for name, weights in (
                    ("even", (1,) * len(ranks)),
                    ("uneven", tuple(rank + 1 for rank in ranks)),
                )
                if name == "even" or kind != "all-reduce"
            }
            found.append(CollectiveTimes(kind, len(ranks), seconds))
    return found


def num_groups(world_size: int) -> int:
    """How often `measured_collectives` begins something."""
    return world_size - 1


def _seconds(
    communicator: Communicator,
    kind: CollectiveKind,
    group: dist.ProcessGroup,
    ranks: tuple[int, ...],
    weights: Sequence[int],
) -> dict[int, list[float]]:
    """By bytes, from the moment when the last one begins to that when the last one is done."""
    found: dict[int, list[float]] = {}
    for num_bytes in TENSOR_BYTES:
        position = ranks.index(communicator.rank) if communicator.rank in ranks else 0
        # An all-to-all exchanges rows for columns: as many of both.
        length = round((num_bytes / 4) ** 0.5) if kind == "all-to-all" else num_bytes // 4
        parts = Parts(_dealt(length, weights), position, group, ranks)
        call = _call(kind, parts)
        spans: list[tuple[float, float]] = []
        for _ in range(NUM_WARM_UPS + NUM_CALLS):
            communicator.barrier()
            began_s = time.perf_counter()
            if communicator.rank in ranks:
                with talking():
                    call()
            spans.append((began_s, time.perf_counter()))
        rows = communicator.gather(spans, list[tuple[float, float]])
        seconds = [
            max(end for _, end in row) - max(start for start, _ in row)
            for row in zip(*(rows[rank] for rank in ranks), strict=True)
        ]
        width = length if kind == "all-to-all" else 1
        found[counted_bytes(kind, parts, width)] = seconds[NUM_WARM_UPS:]
    return found


def _dealt(length: int, weights: Sequence[int]) -> tuple[int, ...]:
    ends = [length * sum(weights[: index + 1]) // sum(weights) for index in range(len(weights))]
    return tuple(end - start for start, end in zip([0, *ends], ends, strict=False))


def _call(kind: CollectiveKind, parts: Parts) -> Callable[[], Tensor]:
    mine, total = parts.sizes[parts.position], sum(parts.sizes)
    own, whole = torch.ones(mine), torch.ones(total)
    rows = torch.ones(mine * total if kind == "all-to-all" else 0)
    calls: dict[CollectiveKind, Callable[[], Tensor]] = {
        "all-reduce": lambda: all_reduce(whole, parts),
        "all-gather": lambda: padded_gather(own, parts),
        "grouped all-gather": lambda: grouped_gather(own, parts),
        "reduce-scatter": lambda: padded_scatter(whole, parts),
        "grouped reduce-scatter": lambda: grouped_scatter(whole, parts),
        "all-to-all": lambda: all_to_all(rows, parts),
    }
    return calls[kind]
