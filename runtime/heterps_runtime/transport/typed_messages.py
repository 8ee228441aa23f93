"""Values that ranks tell one another: JSON of a type that both sides name, never a pickle.

A value travels as bytes behind their number. The number is compared with a limit before memory is
taken for it, and the bytes with the type before anybody sees the value: a rank that sends anything
else has the others say so, and nothing it sent is run.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from pydantic import TypeAdapter, ValidationError
from torch import Tensor

from heterps_configs.errors import HeterpsError
from heterps_runtime.models.dtypes import as_json
from heterps_runtime.transport.lost_ranks import talking

T = TypeVar("T")

# Of one message: that of a rank with a hundred thousand tensors is a tenth of it.
MOST_BYTES = 2**28


class MessageError(HeterpsError):
    """A rank sent something else than what was asked for."""


_ADAPTERS: dict[Any, TypeAdapter[Any]] = {}


def _adapter(kind: Any) -> TypeAdapter[Any]:
    if kind not in _ADAPTERS:
        _ADAPTERS[kind] = TypeAdapter(kind)
    return _ADAPTERS[kind]


def expect(*kinds: Any) -> None:
    """Prepares to read values of some kinds, for a process that has time now and none later."""
    for kind in kinds:
        _adapter(kind)


def decoded(content: bytes, kind: type[T], rank: int) -> T:
    """The value that a rank has sent.

    Args:
        content: JSON, where the rank is what it seems to be.
        kind: What must be in it.
        rank: Named in errors.

    Raises:
        MessageError: The bytes are something else.
    """
    try:
        found: T = _adapter(kind).validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "it"
        raise MessageError(
            f"rank {rank} sent no message of this run ({where!r}: {first['msg']})"
        ) from None
    return found


def check_sizes(sizes: Sequence[int]) -> None:
    """Refuses sizes before memory is taken for them.

    Raises:
        MessageError: One is no size of a message.
    """
    for rank, size in enumerate(sizes):
        if not 0 <= size <= MOST_BYTES:
            raise MessageError(
                f"rank {rank} sent no message of this run ({size} bytes; at most {MOST_BYTES})"
            )


def gather_messages(value: T, kind: type[T], group: dist.ProcessGroup | None) -> list[T]:
    """One value from each rank, by rank; all ranks of the group call it.

    Args:
        value: The own one.
        kind: Of all of them.
        group: Over gloo; None for all ranks.

    Raises:
        MessageError: A rank sent something else.
        LostRankError: One has gone.
    """
    own = as_tensor(as_json(value))
    lengths = list(torch.empty(dist.get_world_size(group), 1, dtype=torch.int64))
    with talking():
        dist.all_gather(lengths, torch.tensor([len(own)]), group)
    sizes = [int(length) for length in lengths]
    check_sizes(sizes)
    padded = torch.zeros(max(sizes), dtype=torch.uint8)
    padded[: len(own)] = own
    rows = list(torch.empty(len(sizes), len(padded), dtype=torch.uint8))
    with talking():
        dist.all_gather(rows, padded, group)
    return [decoded(as_bytes(rows[rank][:size]), kind, rank) for rank, size in enumerate(sizes)]


def broadcast_content(content: bytes) -> bytes:
    """Rank 0's bytes, on all ranks.

    Raises:
        MessageError: Rank 0 has too many.
    """
    size = torch.tensor([len(content)])
    with talking():
        dist.broadcast(size, 0)
    check_sizes([int(size)])
    data = as_tensor(content) if dist.get_rank() == 0 else torch.empty(int(size), dtype=torch.uint8)
    with talking():
        dist.broadcast(data, 0)
    return as_bytes(data)


def as_tensor(content: bytes) -> Tensor:
    """Bytes as a tensor of its own."""
    # (`frombuffer` takes no empty buffer.)
    return (
        torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if content
        else torch.empty(0, dtype=torch.uint8)
    )


def as_bytes(tensor: Tensor) -> bytes:
    """The bytes that a tensor of them holds."""
    return tensor.numpy().tobytes()
