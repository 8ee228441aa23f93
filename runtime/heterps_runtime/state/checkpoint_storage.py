"""Tensors by name in a checkpoint: each rank writes its own, and reads what it asks for.

Whoever wrote a tensor, and under which plan, whoever needs it reads its bytes alone, from a folder
or a URL. They are compared with their checksum before anybody sees them.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from heterps_configs.errors import HeterpsError
from heterps_runtime.state.checkpoint_files import tensors_path
from heterps_runtime.state.checksums import CHECKSUMS_FILE, read_checksums, read_head
from heterps_runtime.state.layout import is_checkpoint_key
from heterps_runtime.state.old_checkpoint import is_old, old_tensor, read_old_tables
from heterps_runtime.state.stored_files import StoredFiles
from heterps_runtime.state.tensor_file import (
    StoredTensor,
    TableError,
    flat_bytes,
    parse_table,
    write_tensor_file,
)
from heterps_runtime.state.tensor_pieces import check_complete, overlaps
from heterps_runtime.tensor_parallel.regions import copy_common
from heterps_runtime.tensor_parallel.slices import TensorSlice
from heterps_runtime.transport.typed_messages import gather_messages


def write_tensors(
    folder: Path,
    tensors: Mapping[str, Tensor],
    group: dist.ProcessGroup | None,
    rank: int,
    pieces: Mapping[str, TensorSlice] | None = None,
) -> None:
    """Writes tensors of this rank; all ranks of the group call it, each with names of its own.

    Ranks that each have a piece of a tensor give it one name.

    Args:
        folder: Shared by all ranks.
        tensors: On the CPU; nobody may change them meanwhile.
        group: Used by nothing else at the same time; None for this process alone.
        rank: The own one.
        pieces: The place of each tensor that is a piece of a larger one; those of which there is
            nothing are not written.

    Raises:
        HeterpsError: On every rank, where one rank could not write.
    """
    empty = {name for name, piece in (pieces or {}).items() if not piece.ranges}
    tensors = {name: tensor for name, tensor in tensors.items() if name not in empty}
    pieces = {name: piece for name, piece in (pieces or {}).items() if name not in empty}
    # All come here before anybody writes: until then, the first rank removes what others left.
    _agree(group, None)
    failure: OSError | None = None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_tensor_file(tensors_path(folder, rank), tensors, pieces)
    except OSError as error:
        failure = error
    _agree(group, failure)


def _agree(group: dist.ProcessGroup | None, failure: OSError | None) -> None:
    """Waits for all ranks; where one has failed, all do."""
    own = "" if failure is None else _reason(failure)
    outcomes = [own] if group is None else gather_messages(own, str, group)
    for rank, outcome in enumerate(outcomes):
        if outcome:
            where = f"rank {rank}: " if sum(map(bool, outcomes)) > 1 or rank else ""
            raise HeterpsError(where + outcome) from failure


def _reason(error: OSError) -> str:
    file = f" ({Path(str(error.filename)).name})" if error.filename else ""
    return f"{error.strerror}{file}"


class SavedTensors(Protocol):
    """The tensors of a checkpoint, wherever it is."""

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        ...

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the whole tensor."""
        ...

    def blank(self, name: str, wanted: TensorSlice | None = None) -> Tensor:
        """An uninitialised tensor of the saved shape and format, or of a slice of it."""
        ...

    def read(
        self, targets: Mapping[str, Tensor], wanted: Mapping[str, TensorSlice] | None = None
    ) -> None:
        """Fills tensors in place; `wanted` are the places of those that are slices."""
        ...


class StoredTensors:
    """What a checkpoint holds.

    Args:
        files: Of a complete checkpoint.

    Raises:
        HeterpsError: Its table of contents cannot be read; the message names the file.
    """

    def __init__(self, files: StoredFiles) -> None:
        self._files, self._is_old = files, is_old(files)
        self._entries: dict[str, tuple[StoredTensor, ...]] = (
            {name: (entry,) for name, entry in read_old_tables(files).items()}
            if self._is_old
            else _read_tables(files)
        )
        strange = next((name for name in self._entries if not is_checkpoint_key(name)), None)
        if strange is not None:
            raise files.damaged(f"it has a tensor called {strange!r}")

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """The shape of the whole tensor.

        Raises:
            HeterpsError: There is no such tensor.
        """
        first = self._pieces(name)[0]
        return first.piece.shape if first.piece else first.shape

    def blank(self, name: str, wanted: TensorSlice | None = None) -> Tensor:
        """An uninitialised tensor of the saved shape and format, or of a slice of it.

        Raises:
            HeterpsError: There is no such tensor.
        """
        shape = self.shape(name) if wanted is None else wanted.local_shape
        return torch.empty(shape, dtype=self._pieces(name)[0].dtype)

    def read(
        self, targets: Mapping[str, Tensor], wanted: Mapping[str, TensorSlice] | None = None
    ) -> None:
        """Fills tensors in place; no byte of another tensor is read.

        Args:
            targets: By name.
            wanted: The places of those that are slices of the whole tensor. Of a tensor in pieces,
                only those that have some of it are read.

        Raises:
            HeterpsError: A tensor is missing, has another shape, or a file is damaged or missing.
        """
        slices = wanted or {}
        for name, target in targets.items():
            self._check_shape(name, target, slices.get(name))
        whole = {
            name: pieces[0]
            for name in targets
            if len(pieces := self._entries[name]) == 1 and name not in slices
        }
        for names in _side_by_side(whole, self._files.request_bytes):
            first = whole[names[0]]
            own = [self._memory(whole[name], targets[name]) for name in names]
            self._files.fill(first.file, first.start, [memory for memory, _ in own])
            for name, (memory, staged) in zip(names, own, strict=True):
                self._check(name, whole[name], memory, targets[name], staged)
        for name in targets.keys() - whole.keys():
            for piece in self._entries[name]:
                if overlaps(piece.piece, slices.get(name)):
                    self._read_part(name, piece, targets[name], slices.get(name))

    def _check_shape(self, name: str, target: Tensor, wanted: TensorSlice | None) -> None:
        shape, dtype = self.shape(name), self._pieces(name)[0].dtype
        own = tuple(target.shape) if wanted is None else wanted.shape
        if (shape, dtype) != (own, target.dtype):
            raise HeterpsError(
                f"{self._files.place}: {name} is {shape} of {dtype}, and the model's is "
                f"{own} of {target.dtype}"
            )

    def _read_part(
        self, name: str, entry: StoredTensor, target: Tensor, wanted: TensorSlice | None
    ) -> None:
        """Reads one piece, and copies what the target needs of it."""
        found = entry.blank()
        memory, staged = self._memory(entry, found)
        self._files.fill(entry.file, entry.start, [memory])
        self._check(name, entry, memory, found, staged)
        copy_common(found, entry.piece, target, wanted)

    def _memory(self, entry: StoredTensor, target: Tensor) -> tuple[memoryview, bytearray | None]:
        """Where to read a tensor to, which is its own memory where that is possible."""
        if target.is_contiguous() and target.device.type == "cpu" and not self._is_old:
            return flat_bytes(target), None
        staged = bytearray(entry.length)
        return memoryview(staged), staged

    def _check(
        self,
        name: str,
        entry: StoredTensor,
        memory: memoryview,
        target: Tensor,
        staged: bytearray | None,
    ) -> None:
        """Refuses what is not what was written; the rest comes to its target."""
        if self._is_old:
            assert staged is not None
            try:
                found = old_tensor(staged, entry)
            except TableError as error:
                raise self._files.damaged(f"{name} {error} ({entry.file})") from error
            memory = flat_bytes(found)
        if zlib.crc32(memory) != entry.crc32:
            raise self._files.damaged(f"the checksum of {name} differs ({entry.file})")
        if self._is_old:
            target.copy_(found)
        elif staged:
            target.copy_(torch.frombuffer(staged, dtype=entry.dtype).reshape(entry.shape))

    def _pieces(self, name: str) -> tuple[StoredTensor, ...]:
        if name not in self._entries:
            raise HeterpsError(f"{self._files.place}: has no tensor {name!r}")
        return self._entries[name]


def _read_tables(files: StoredFiles) -> dict[str, tuple[StoredTensor, ...]]:
    """Where the tensors of all ranks are, each whole or in pieces that make it up."""
    found: dict[str, tuple[StoredTensor, ...]] = {}
    for line in read_checksums(files).values():
        if line.name.endswith(".safetensors"):
            head = read_head(files, line)
            try:
                table = parse_table(head, line.name, line.num_bytes)
            except TableError as error:
                raise files.damaged(f"the table of {line.name}: {error}") from None
            for name, entry in table.items():
                found[name] = (*found.get(name, ()), entry)
    for name, entries in found.items():
        pieces = [entry.piece for entry in entries if entry.piece is not None]
        if len(entries) > 1 and len(pieces) < len(entries):
            raise files.damaged(f"{CHECKSUMS_FILE}: two files have {name!r}")
        try:
            if pieces:
                check_complete(pieces)
        except ValueError as error:
            raise files.damaged(f"{name!r} {error}") from None
        if len({entry.dtype for entry in entries}) > 1:
            raise files.damaged(f"{name!r} has pieces of different formats")
    return found


def _side_by_side(entries: Mapping[str, StoredTensor], most_bytes: int) -> Iterator[list[str]]:
    """Names of tensors that are read together: they follow one another, and are not too many."""
    names: list[str] = []
    file, start, stop = "", 0, 0
    for name, entry in _in_order(entries.items()):
        end = entry.start + entry.length
        is_next = (entry.file, entry.start) == (file, stop)
        if names and (not is_next or end - start > most_bytes):
            yield names
            names = []
        if not names:
            file, start = entry.file, entry.start
        names.append(name)
        stop = end
    if names:
        yield names


def _in_order(
    entries: Iterable[tuple[str, StoredTensor]],
) -> list[tuple[str, StoredTensor]]:
    return sorted(entries, key=lambda item: (item[1].file, item[1].start, item[1].length))
