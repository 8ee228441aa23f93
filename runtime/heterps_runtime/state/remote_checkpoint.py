"""Checkpoints under a URL: the files of a local one. Of the tensors only what is asked for is read.

`checkpoint.json` is uploaded last and removed first: a folder that has it is complete.
"""

from __future__ import annotations

import io
import json
import pickle
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata

from heterps_configs.errors import HeterpsError
from heterps_runtime.state.checkpoint_files import DOCUMENT_FILE, CheckpointDocument
from heterps_runtime.state.checkpoint_storage import check_target, checksum
from heterps_runtime.state.remote_storage import RemoteError, RemoteStorage

_STEP = re.compile(r"step-(\d+)")
# Tensors that lie side by side are read together, up to this size.
_READ_BYTES = 32 * 2**20


class _Place(NamedTuple):
    """Where the bytes of a tensor are."""

    file: str
    offset: int
    length: int


def remote_checkpoints(storage: RemoteStorage) -> dict[int, str]:
    """Complete ones, the oldest first: step and name of the folder.

    Raises:
        RemoteError: The storage cannot be read.
    """
    steps = {name: step_of(name) for name in storage.names()}
    found = sorted((step, name) for name, step in steps.items() if step is not None)
    return {step: name for step, name in found if storage.has(f"{name}/{DOCUMENT_FILE}")}


def step_of(name: str) -> int | None:
    """Of a checkpoint's folder; None for any other name."""
    match = _STEP.fullmatch(name)
    return int(match[1]) if match else None


def newest_remote(url: str) -> str:
    """URL of the newest checkpoint in a folder of them, or the URL itself where it is one.

    Raises:
        HeterpsError: There is none, or the storage cannot be read.
    """
    storage = RemoteStorage(url)
    if storage.has(DOCUMENT_FILE):
        return storage.url
    names = list(remote_checkpoints(storage).values())
    if not names:
        raise HeterpsError(f"{url}: there is no complete checkpoint (step-NUMBER) to resume from")
    return storage.url_of(names[-1])


def newest_document(url: str) -> tuple[str, CheckpointDocument] | None:
    """URL of the newest checkpoint in a folder of them, and what it says; None for none.

    Raises:
        HeterpsError: The storage cannot be read, or the document is damaged.
    """
    storage = RemoteStorage(url)
    names = list(remote_checkpoints(storage).values())
    return (storage.url_of(names[-1]), remote_document(storage, names[-1])) if names else None


def remote_document(storage: RemoteStorage, folder: str = "") -> CheckpointDocument:
    """What a checkpoint says of itself.

    Raises:
        HeterpsError: It is missing or broken.
    """
    name = f"{folder}/{DOCUMENT_FILE}" if folder else DOCUMENT_FILE
    try:
        content: dict[str, Any] = json.loads(storage.read(name))
    except ValueError as error:
        raise HeterpsError(f"{storage.url_of(name)}: is damaged: {error}") from error
    return CheckpointDocument.from_mapping(content, source=storage.url_of(name))


class RemoteTensors:
    """What a remote checkpoint holds; like `TensorFolder`.

    Args:
        storage: Where it is.
        folder: Its name there; empty where the storage's URL is that of the checkpoint.

    Raises:
        HeterpsError: It cannot be read, or its table of contents is damaged.
    """

    def __init__(self, storage: RemoteStorage, folder: str = "") -> None:
        self._storage, self._folder = storage, folder
        self.place = storage.url_of(folder)
        content = storage.read(self._path(".metadata"))
        try:
            # As with `torch.load`: read only the checkpoints of people whom you trust.
            metadata: Metadata = pickle.loads(content)
            self._entries = metadata.state_dict_metadata
            self._places = {
                index.fqn: _Place(info.relative_path, info.offset, info.length)
                for index, info in metadata.storage_data.items()
            }
            self._sums: dict[str, int] = {}
            for name in storage.names(folder):
                if name.startswith("checksums-"):
                    self._sums.update(json.loads(storage.read(self._path(name))))
        except RemoteError:
            raise
        except Exception as error:
            # Whatever a broken pickle raises.
            raise self._damaged(f"{type(error).__name__}: {error}") from error

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._entries)

    def blank(self, name: str) -> Tensor:
        """An uninitialised tensor of the saved shape and format.

        Raises:
            HeterpsError: There is no such tensor.
        """
        entry = self._entry(name)
        return torch.empty(entry.size, dtype=entry.properties.dtype)

    def read(self, targets: Mapping[str, Tensor]) -> None:
        """Fills tensors in place; no byte of another tensor is fetched.

        Raises:
            HeterpsError: A tensor is missing, has another shape, or a file is damaged or missing.
        """
        for name, target in targets.items():
            entry = self._entry(name)
            check_target(self.place, name, entry, target)
        for names, file, start, stop in self._ranges(targets):
            content = memoryview(self._storage.read(self._path(file), start, stop))
            for name in names:
                place = self._places[name]
                own = content[place.offset - start : place.offset - start + place.length]
                targets[name].copy_(self._tensor(name, own))

    def _tensor(self, name: str, content: memoryview) -> Tensor:
        try:
            found: Tensor = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
        except Exception as error:
            raise self._damaged(f"{name} cannot be read") from error
        if self._sums.get(name) != checksum(found):
            raise self._damaged(f"the checksum of {name} differs")
        return found

    def _ranges(self, targets: Mapping[str, Tensor]) -> Iterator[tuple[list[str], str, int, int]]:
        """(names, file, first byte, one after the last byte) of each request."""
        wanted = sorted((self._places[name], name) for name in targets)
        names: list[str] = []
        file, start, stop = "", 0, 0
        for place, name in wanted:
            end = place.offset + place.length
            is_next = (place.file, place.offset) == (file, stop)
            if names and (not is_next or end - start > _READ_BYTES):
                yield names, file, start, stop
                names = []
            if not names:
                file, start = place.file, place.offset
            names.append(name)
            stop = end
        if names:
            yield names, file, start, stop

    def _path(self, name: str) -> str:
        return f"{self._folder}/{name}" if self._folder else name

    def _entry(self, name: str) -> TensorStorageMetadata:
        entry = self._entries.get(name)
        if not isinstance(entry, TensorStorageMetadata) or name not in self._places:
            raise HeterpsError(f"{self.place}: has no tensor {name!r}")
        return entry

    def _damaged(self, why: str) -> HeterpsError:
        return HeterpsError(f"{self.place}: the checkpoint is damaged ({why})")
