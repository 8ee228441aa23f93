"""Tensors by name in a folder, through torch.distributed.checkpoint; with a checksum of each.

Each rank writes what it was given, and reads what it asks for, whoever wrote it. The format is that
of torch, so that its own tools read the folder, too. torch does not notice flipped bits; the
checksums do. Its table of contents is a pickle: as with `torch.load`, read only the checkpoints of
people whom you trust.
"""

from __future__ import annotations

import json
import logging
import warnings
import zlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import Metadata, TensorStorageMetadata
from torch.distributed.checkpoint.planner import LoadPlan, LoadPlanner, SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_runtime.state.checkpoint_files import checksums_path
from heterps_runtime.transport.lost_ranks import talking


class _Writer(FileSystemWriter):
    """Writes the rank's checksums in front of its tensors."""

    def __init__(self, folder: Path, rank: int) -> None:
        super().__init__(folder)
        self._checksums_file = checksums_path(folder, rank)

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        sums = {}
        for item in plan.items:
            tensor = planner.resolve_data(item)
            assert isinstance(tensor, Tensor)
            sums[item.index.fqn] = checksum(tensor)
        try:
            write_text(self._checksums_file, json.dumps(sums))
            return super().write_data(plan, planner)
        except RuntimeError as error:
            # Of a full disk, torch only says that a position in a file is unexpected.
            if isinstance(error.__context__, OSError):
                raise error.__context__ from None
            raise


class _Reader(FileSystemReader):
    """Holds one tensor at a time beside its target; torch's own reader holds two."""

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        for item in plan.items:
            super().read_data(replace(plan, items=[item]), planner).wait()
        done: Future[None] = Future()
        done.set_result(None)
        return done


def write_tensors(
    folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup | None, rank: int
) -> None:
    """Writes tensors of this rank; all ranks of the group call it, each with names of its own.

    Args:
        folder: Shared by all ranks.
        tensors: On the CPU; nobody may change them meanwhile.
        group: Used by nothing else at the same time; None for this process alone.
        rank: The own one.

    Raises:
        HeterpsError: On every rank, where one rank could not write.
    """
    writer = _Writer(folder, rank)
    try:
        # What is written here fails as a CheckpointException: all else is said by the group.
        with talking():
            save(dict(tensors), storage_writer=writer, process_group=group, no_dist=group is None)
    except CheckpointException as error:
        raise HeterpsError(_cause(error)) from error


class SavedTensors(Protocol):
    """The tensors of a checkpoint, wherever it is."""

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        ...

    def blank(self, name: str) -> Tensor:
        """An uninitialised tensor of the saved shape and format."""
        ...

    def read(self, targets: Mapping[str, Tensor]) -> None:
        """Fills tensors in place."""
        ...


class TensorFolder:
    """What a checkpoint in a folder holds.

    Args:
        folder: A complete checkpoint.

    Raises:
        HeterpsError: Its table of contents cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._reader = _Reader(folder)
        try:
            self._metadata: Metadata = self._reader.read_metadata()
            self._sums: dict[str, int] = {}
            for path in folder.glob("checksums-*.json"):
                self._sums.update(json.loads(path.read_text()))
        except Exception as error:
            # Whatever a broken pickle raises.
            raise self._damaged(f"{type(error).__name__}: {error}") from error

    @property
    def names(self) -> list[str]:
        """Names of all tensors."""
        return list(self._metadata.state_dict_metadata)

    def blank(self, name: str) -> Tensor:
        """An uninitialised tensor of the saved shape and format.

        Raises:
            HeterpsError: There is no such tensor.
        """
        entry = self._entry(name)
        return torch.empty(entry.size, dtype=entry.properties.dtype)

    def read(self, targets: Mapping[str, Tensor]) -> None:
        """Fills tensors in place, one after another.

        Raises:
            HeterpsError: A tensor is missing, has another shape, or a file is damaged or missing.
        """
        for name, target in targets.items():
            check_target(str(self.folder), name, self._entry(name), target)
        if not targets:
            return
        # The reader would warn at length of what is said in one line below.
        logging.getLogger("torch.distributed.checkpoint").setLevel(logging.CRITICAL)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="torch.distributed is disabled")
                load(dict(targets), storage_reader=self._reader, no_dist=True)
        except CheckpointException as error:
            raise self._damaged(_cause(error)) from error
        for name, target in targets.items():
            if self._sums.get(name) != checksum(target):
                raise self._damaged(f"the checksum of {name} differs")

    def _entry(self, name: str) -> TensorStorageMetadata:
        entry = self._metadata.state_dict_metadata.get(name)
        if not isinstance(entry, TensorStorageMetadata):
            raise HeterpsError(f"{self.folder}: has no tensor {name!r}")
        return entry

    def _damaged(self, why: str) -> HeterpsError:
        return HeterpsError(
            f"{self.folder}: the checkpoint is damaged ({why}); remove this folder to go on from "
            "the one before"
        )


def check_target(place: str, name: str, entry: TensorStorageMetadata, target: Tensor) -> None:
    """Compares a tensor with what was saved.

    Raises:
        HeterpsError: Its shape or format differs.
    """
    shape, dtype = entry.size, entry.properties.dtype
    if (shape, dtype) != (target.shape, target.dtype):
        raise HeterpsError(
            f"{place}: {name} is {tuple(shape)} of {dtype}, and the model's is "
            f"{tuple(target.shape)} of {target.dtype}"
        )


def checksum(tensor: Tensor) -> int:
    """CRC-32 of a tensor's bytes."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    return zlib.crc32(flat.view(torch.uint8).numpy().data)


def _cause(error: CheckpointException) -> str:
    """The first failure in one line."""
    (rank, (cause, _)), *_ = sorted(error.failures.items())
    where = f"rank {rank}: " if len(error.failures) > 1 or rank else ""
    if isinstance(cause, OSError) and cause.strerror:
        file = f" ({Path(str(cause.filename)).name})" if cause.filename else ""
        return f"{where}{cause.strerror}{file}"
    lines = str(cause).strip().splitlines() or ["no message"]
    return f"{where}{type(cause).__name__}: {lines[0].partition('. ')[0]}"
