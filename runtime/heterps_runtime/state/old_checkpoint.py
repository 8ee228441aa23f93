"""Checkpoints of format 1: that of torch.distributed.checkpoint, which later ones no longer have.

    .metadata         the table of tensors, a pickle
    __RANK_N.distcp   the tensors, each as `torch.save` writes it
    checksums-N.json  CRC-32 of each tensor of rank N

torch's own reader runs whatever the pickle asks for; here it can ask for nothing. Its opcodes are
those that build plain values, and every class it names is one of `_KNOWN`, in whose place stand
records that do nothing. What comes out is checked like any table.
"""

from __future__ import annotations

import io
import json
import math
import pickle
import pickletools
import re
import zipfile
from typing import Annotated, Any

import torch
from pydantic import Field, TypeAdapter
from torch import Tensor

from heterps_configs.errors import HeterpsError
from heterps_runtime.state.stored_files import StoredFiles
from heterps_runtime.state.tensor_file import StoredTensor, TableError

TABLE_FILE = ".metadata"
_FILE = re.compile(r"__[0-9]{1,6}_[0-9]{1,6}\.distcp", re.ASCII)
_SUMS_FILE = re.compile(r"checksums-[0-9]{1,6}\.json", re.ASCII)
_SUMS = TypeAdapter(dict[str, Annotated[int, Field(ge=0, lt=2**32, strict=True)]])
_MOST_TABLE_BYTES = 256 * 2**20
# What `torch.save` puts around a tensor.
_MOST_FRAME_BYTES = 2**20
_MOST_DIMENSIONS, _MOST_ELEMENTS = 64, 2**60
_METADATA = "torch.distributed.checkpoint.metadata"
_FORMATS = (
    "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool",
    "complex64", "complex128",
)  # fmt: skip


class _Record:
    """Stands for an object of a class that the pickle names: keeps its fields, and does nothing."""

    __slots__ = ("fields",)

    def __new__(cls, *arguments: object) -> _Record:
        found = super().__new__(cls)
        found.fields = {}
        return found

    def __setstate__(self, fields: Any) -> None:
        self.fields = fields


class _Metadata(_Record): ...


class _TensorMetadata(_Record): ...


class _Properties(_Record): ...


class _Chunk(_Record): ...


class _Index(_Record): ...


class _Storage(_Record): ...


class _Ignored(_Record): ...


_KNOWN: dict[tuple[str, str], object] = {
    (_METADATA, "Metadata"): _Metadata,
    (_METADATA, "TensorStorageMetadata"): _TensorMetadata,
    (_METADATA, "TensorProperties"): _Properties,
    (_METADATA, "ChunkStorageMetadata"): _Chunk,
    (_METADATA, "MetadataIndex"): _Index,
    (_METADATA, "StorageMeta"): _Ignored,
    (_METADATA, "_MEM_FORMAT_ENCODING"): _Ignored,
    ("torch.distributed.checkpoint.filesystem", "_StorageInfo"): _Storage,
    ("torch.serialization", "_get_layout"): _Ignored,
    ("torch", "Size"): tuple,
    ("pathlib", "PosixPath"): _Ignored,
    ("pathlib", "WindowsPath"): _Ignored,
    ("pathlib._local", "PosixPath"): _Ignored,
    ("pathlib._local", "WindowsPath"): _Ignored,
    **{("torch", name): name for name in _FORMATS},
}
# Others reach the registry of extensions, or take memory for what is not there.
_OPCODES = frozenset(
    (
        "PROTO", "FRAME", "STOP", "MARK", "POP", "POP_MARK", "DUP", "MEMOIZE", "BINGET",
        "LONG_BINGET", "BINPUT", "LONG_BINPUT", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1",
        "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "EMPTY_TUPLE", "TUPLE1", "TUPLE2",
        "TUPLE3", "TUPLE", "EMPTY_LIST", "APPEND", "APPENDS", "EMPTY_DICT", "SETITEM", "SETITEMS",
        "STACK_GLOBAL", "GLOBAL", "REDUCE", "NEWOBJ", "BUILD",
    )
)  # fmt: skip


class _Reader(pickle.Unpickler):
    """Knows a handful of classes."""

    def find_class(self, module: str, name: str) -> object:
        """What stands for a class.

        Raises:
            TableError: It is none of those that a table of tensors needs.
        """
        found = _KNOWN.get((module, name))
        if found is None:
            raise TableError(f"asks for {f'{module}.{name}'!r}, which no table of tensors needs")
        return found


def is_old(files: StoredFiles) -> bool:
    """Whether a checkpoint has the old format."""
    return files.has(TABLE_FILE)


def read_old_tables(files: StoredFiles) -> dict[str, StoredTensor]:
    """Where the tensors are: each with the bytes around it that `torch.save` writes.

    Raises:
        HeterpsError: The table is damaged, or asks for anything but plain values.
    """
    size = files.size(TABLE_FILE)
    if size > _MOST_TABLE_BYTES:
        raise files.damaged(f"{TABLE_FILE} has {size} bytes")
    content, sums = files.read(TABLE_FILE, 0, size), _checksums(files)
    try:
        table = _unpickled(content)
        sizes: dict[str, int] = {}
        found: dict[str, StoredTensor] = {}
        for index, storage in _fields(table, _Metadata)["storage_data"].items():
            name = _fields(index, _Index)["fqn"]
            where = _fields(storage, _Storage)
            file = where["relative_path"]
            if not isinstance(file, str) or not _FILE.fullmatch(file):
                raise TableError(f"names {file!r}, which is no file of a checkpoint")
            if file not in sizes:
                sizes[file] = files.size(file)
            if name in found or name not in sums:
                raise TableError(f"{name!r} is there twice, or has no checksum")
            entry = _fields(table, _Metadata)["state_dict_metadata"][name]
            found[name] = _stored(where, entry, sizes[file], sums[name])
    except HeterpsError:
        raise
    except Exception as error:
        # Whatever comes of values that are not what they should be.
        reason = str(error) if isinstance(error, TableError) else f"{type(error).__name__}: {error}"
        raise files.damaged(f"{TABLE_FILE}: {reason}") from error
    return found


def old_tensor(content: bytearray, expected: StoredTensor) -> Tensor:
    """One tensor out of what `torch.save` wrote.

    Raises:
        TableError: It is something else.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            entries = archive.infolist()
        # Packed entries could be of any size.
        if any(e.compress_type != zipfile.ZIP_STORED for e in entries):
            raise TableError("is packed")
        # Builds tensors alone.
        found = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    except Exception as error:
        raise TableError("cannot be read") from error
    if not isinstance(found, Tensor) or found.layout != torch.strided:
        raise TableError("is no tensor")
    if (tuple(found.shape), found.dtype) != (expected.shape, expected.dtype):
        raise TableError("has another shape than the table says")
    return found


def _unpickled(content: bytes) -> object:
    for opcode, argument, _ in pickletools.genops(content):
        if opcode.name not in _OPCODES:
            raise TableError(f"has the opcode {opcode.name}, which no table of tensors needs")
        if opcode.name.endswith("PUT") and isinstance(argument, int) and argument > len(content):
            raise TableError(f"keeps a value under the number {argument}")
    return _Reader(io.BytesIO(content)).load()


def _fields(record: object, kind: type[_Record]) -> dict[str, Any]:
    if not isinstance(record, kind) or not isinstance(record.fields, dict):
        raise TableError(f"has a {type(record).__name__} in the place of a {kind.__name__}")
    return record.fields


def _stored(where: dict[str, Any], entry: object, file_bytes: int, crc32: int) -> StoredTensor:
    """A tensor of the table, where it lies within its file and is whole."""
    fields = _fields(entry, _TensorMetadata)
    start, length, shape = where["offset"], where["length"], _whole(fields["size"])
    (chunk,) = fields["chunks"]
    parts = _fields(chunk, _Chunk)
    if _whole(parts["sizes"]) != shape or any(_whole(parts["offsets"])):
        raise TableError("has a tensor in several parts")
    properties = fields["properties"]
    # Its fields are a tuple: the format, and four that say how a tensor was held.
    named = properties.fields[0] if isinstance(properties, _Properties) else None
    if named not in _FORMATS or where.get("transform_descriptors"):
        raise TableError("has an unknown format")
    dtype: torch.dtype = getattr(torch, named)
    start, length = _whole((start, length))
    need = math.prod(shape) * dtype.itemsize
    if math.prod(max(size, 1) for size in shape) > _MOST_ELEMENTS or not (
        need <= length <= need + _MOST_FRAME_BYTES and start + length <= file_bytes
    ):
        raise TableError("has a tensor whose bytes and shape differ")
    return StoredTensor(where["relative_path"], start, length, dtype, shape, crc32)


def _whole(numbers: Any) -> tuple[int, ...]:
    """Whole numbers from 0 on, and not many."""
    if not isinstance(numbers, tuple) or len(numbers) > _MOST_DIMENSIONS:
        raise TableError("has something in the place of sizes")
    if not all(type(number) is int and 0 <= number <= _MOST_ELEMENTS for number in numbers):
        raise TableError("has an impossible size")
    return numbers


def _checksums(files: StoredFiles) -> dict[str, int]:
    sums: dict[str, int] = {}
    for name in files.names():
        if _SUMS_FILE.fullmatch(name):
            content = files.read(name, 0, min(files.size(name), _MOST_TABLE_BYTES))
            try:
                sums.update(_SUMS.validate_python(json.loads(content)))
            except (ValueError, RecursionError):
                raise files.damaged(f"{name} holds no checksums") from None
    return sums
