"""`tensors-RANK.safetensors`: tensors of one rank, behind a table of JSON; any tool reads it.

The table is in `safetensors`' own form. Its free texts (`__metadata__`) hold the CRC-32 of each
tensor by its name, and behind it the place of what is a piece of a tensor
(`heterps_runtime.state.tensor_pieces`). Tensors of larger elements come first, so that each is
aligned in memory.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import torch
from pydantic import Field, TypeAdapter, ValidationError
from torch import Tensor

from heterps_configs.documents.base import Document
from heterps_runtime.state.tensor_pieces import PLACE_PATTERN, parse_place, place_text
from heterps_runtime.tensor_parallel.slices import TensorSlice

FORMATS: dict[str, torch.dtype] = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U64": torch.uint64, "U32": torch.uint32, "U16": torch.uint16, "U8": torch.uint8,
    "BOOL": torch.bool, "C64": torch.complex64, "C128": torch.complex128,
    "F8_E4M3": torch.float8_e4m3fn, "F8_E5M2": torch.float8_e5m2,
}  # fmt: skip
_NAMES = {dtype: name for name, dtype in FORMATS.items()}
_TEXTS = "__metadata__"
_LENGTH = struct.Struct("<Q")
_MOST_DIMENSIONS = 64
_MOST_ELEMENTS = 2**60
# What is written and added to the checksum at once: it stays in the processor's cache.
_PART_BYTES = 2**20

_Size = Annotated[int, Field(ge=0, le=2**60, strict=True)]


class _Slot(Document):
    """What the table says of a tensor."""

    dtype: str
    shape: Annotated[tuple[_Size, ...], Field(max_length=_MOST_DIMENSIONS)]
    data_offsets: tuple[_Size, _Size]


_SLOTS = TypeAdapter(dict[str, _Slot])
_SUMS = TypeAdapter(
    dict[
        str, Annotated[str, Field(pattern=rf"^[0-9a-f]{{8}}(;{PLACE_PATTERN})?$", max_length=2**16)]
    ]
)


class StoredTensor(NamedTuple):
    """Where a tensor is, and what it is.

    Attributes:
        file: Name of the file.
        start: First byte in the file.
        length: In bytes.
        crc32: Of these bytes.
        piece: Where it is a piece of a tensor, its place; None: it is whole.
    """

    file: str
    start: int
    length: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    crc32: int
    piece: TensorSlice | None = None

    def blank(self) -> Tensor:
        """Uninitialised memory for it."""
        return torch.empty(self.shape, dtype=self.dtype)


class TableError(ValueError):
    """A table contradicts itself, its file or its form; the text says how."""


def write_tensor_file(
    path: Path, tensors: Mapping[str, Tensor], pieces: Mapping[str, TensorSlice] | None = None
) -> None:
    """Writes tensors, on the disk when it returns.

    Args:
        path: Of the new file.
        tensors: On the CPU; nobody may change them meanwhile.
        pieces: The place of each of them that is a piece of a larger one.

    Raises:
        OSError: The file cannot be written.
    """
    ordered = sorted(tensors.items(), key=lambda item: -item[1].element_size())
    slots: dict[str, Any] = {}
    start = 0
    for name, tensor in ordered:
        end = start + tensor.nbytes
        slots[name] = {
            "dtype": _NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
        start = end
    places = {name: f";{place_text(piece)}" for name, piece in (pieces or {}).items()}
    sums = {name: "00000000" + places.get(name, "") for name in slots}
    with path.open("wb", buffering=0) as file:
        # Checksums have one length: the table takes its place, and is written once they are known.
        file.seek(len(_table(slots, sums)))
        for name, tensor in ordered:
            crc32 = _write(file.fileno(), flat_bytes(tensor))
            sums[name] = f"{crc32:08x}" + places.get(name, "")
        file.seek(0)
        _write(file.fileno(), memoryview(_table(slots, sums)))
        os.fsync(file.fileno())


def flat_bytes(tensor: Tensor) -> memoryview:
    """The bytes of a tensor on the CPU: its own where they lie in order, else a copy."""
    flat = tensor.detach().contiguous().reshape(-1)
    return flat.view(torch.uint8).numpy().data.cast("B")


def _write(file: int, content: memoryview) -> int:
    """The CRC-32 of what is written."""
    crc32 = 0
    while len(content):
        count = os.write(file, content[:_PART_BYTES])
        crc32 = zlib.crc32(content[:count], crc32)
        content = content[count:]
    return crc32


def _table(slots: Mapping[str, Any], sums: Mapping[str, str]) -> bytes:
    text = json.dumps({_TEXTS: sums, **slots}, separators=(",", ":")).encode()
    text += b" " * (-len(text) % _LENGTH.size)
    return _LENGTH.pack(len(text)) + text


def read_own_table(path: Path) -> bytes:
    """The table of a file that was just written, with its length in front.

    Raises:
        OSError: It cannot be read.
    """
    with path.open("rb") as file:
        length = file.read(_LENGTH.size)
        return length + file.read(*_LENGTH.unpack(length))


def parse_table(content: bytes, file: str, file_bytes: int) -> dict[str, StoredTensor]:
    """What a table says, where it holds together.

    Every tensor lies behind the table and within the file, and has as many bytes as its shape
    takes; no two share a byte, and no byte is left over.

    Args:
        content: The table with its length in front.
        file: Name of its file.
        file_bytes: Of the whole file.

    Raises:
        TableError: It does not.
    """
    slots, sums = _parsed(content)
    if slots.keys() != sums.keys():
        raise TableError("not every tensor has a checksum")
    found = {
        name: _stored(name, slot, sums[name], file, len(content)) for name, slot in slots.items()
    }
    end = len(content)
    for tensor in sorted(found.values(), key=lambda tensor: (tensor.start, tensor.length)):
        if tensor.start != end:
            raise TableError("tensors overlap, or leave a gap")
        end += tensor.length
    if end != file_bytes:
        raise TableError(f"the tensors end at byte {end}, and the file at {file_bytes}")
    return found


def _parsed(content: bytes) -> tuple[dict[str, _Slot], dict[str, str]]:
    length = len(content) - _LENGTH.size
    if length < 0 or _LENGTH.unpack_from(content)[0] != length:
        raise TableError("its length differs")
    try:
        parsed = json.loads(content[_LENGTH.size :], object_pairs_hook=_without_repeats)
        if not isinstance(parsed, dict):
            raise TableError("is no mapping")
        sums = _SUMS.validate_python(parsed.pop(_TEXTS, None))
        return _SLOTS.validate_python(parsed), sums
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise TableError(f"{where!r}: {first['msg']}") from None
    except TableError:
        raise
    except (ValueError, RecursionError) as error:
        raise TableError(f"is no table: {error}") from None


def _without_repeats(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in pairs:
        if name in found:
            raise TableError(f"{name!r} is there twice")
        found[name] = value
    return found


def _stored(name: str, slot: _Slot, text: str, file: str, first: int) -> StoredTensor:
    crc32, _, place = text.partition(";")
    dtype = FORMATS.get(slot.dtype)
    if dtype is None:
        raise TableError(f"{name!r} has the unknown format {slot.dtype!r}")
    # Sizes of 0 would hide what no memory could be described by.
    if math.prod(max(size, 1) for size in slot.shape) > _MOST_ELEMENTS:
        raise TableError(f"{name!r} has an impossible shape")
    start, end = slot.data_offsets
    if end - start != math.prod(slot.shape) * dtype.itemsize:
        raise TableError(f"{name!r} has {end - start} bytes, and its shape takes another number")
    piece = _piece(name, place, slot.shape) if place else None
    return StoredTensor(file, first + start, end - start, dtype, slot.shape, int(crc32, 16), piece)


def _piece(name: str, place: str, shape: tuple[int, ...]) -> TensorSlice:
    try:
        piece = parse_place(place)
    except ValueError as error:
        raise TableError(f"{name!r} {error}") from None
    if piece.local_shape != shape:
        raise TableError(f"{name!r} has another shape than its place")
    return piece
