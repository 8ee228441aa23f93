"""Recordings of a model, made once: in a process for all its stages, in a run for all its ranks.

A recording costs its process half a second, most of it for what torch imports with the first fake
tensor, and is the same on all ranks. So one rank makes it, and the others neither wait longer nor
take processor time from it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from torch import nn

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.errors import HeterpsError
from heterps_runtime.models.build import arguments, build_module, meta_inputs
from heterps_runtime.models.mixed_precision import autocast
from heterps_runtime.models.recorder import Recorder
from heterps_runtime.models.recording import Recording
from heterps_runtime.models.recording_messages import packed, unpacked

# A device with several stages, and a process with several devices, need one recording again.
_RECORDINGS: dict[tuple[str, int, Dtype], Recording] = {}
_MOST_RECORDINGS = 32


class Broadcaster(Protocol):
    """The part of a `Communicator` that is needed here."""

    rank: int
    world_size: int

    def broadcast_bytes(self, data: bytes) -> bytes:
        """Sends rank 0's bytes to all ranks, and returns them."""
        ...


def recorded(source: ModelSource, module: nn.Module, batch_size: int, dtype: Dtype) -> Recording:
    """The recording of a model, which this process may have.

    Args:
        source: How the model was built.
        module: From `build_module(source, dtype=dtype)`.
        batch_size: Samples of the micro-batch.
        dtype: Of the job.

    Raises:
        HeterpsError: The forward pass fails.
    """
    key = source.model_dump_json(), batch_size, dtype
    if key not in _RECORDINGS:
        _keep(key, record(source, module, batch_size, dtype))
    return _RECORDINGS[key]


def share_recordings(source: ModelSource, job: Job, communicator: Broadcaster) -> None:
    """Gives all ranks the recordings of rank 0, of all sizes of a job; they call it together.

    Where rank 0 cannot record the model, or what it recorded cannot be sent, each rank records for
    itself when it builds its stages, and so has the error to itself, too.

    Args:
        source: How to build the model; it may be another object on each rank, but the same model.
        job: Sizes of micro-batches and the dtype.
        communicator: The processes.
    """
    if communicator.world_size == 1:
        return
    sizes = sorted(set(job.micro_batch_sizes) | {job.micro_batch_size})
    if communicator.rank == 0:
        communicator.broadcast_bytes(_packed(source, sizes, job.dtype))
        return
    for size, recording in zip(sizes, _unpacked(communicator.broadcast_bytes(b"")), strict=False):
        _keep((source.model_dump_json(), size, job.dtype), recording)


def _keep(key: tuple[str, int, Dtype], recording: Recording) -> None:
    if len(_RECORDINGS) >= _MOST_RECORDINGS:
        _RECORDINGS.clear()
    _RECORDINGS[key] = recording


def _packed(source: ModelSource, sizes: list[int], dtype: Dtype) -> bytes:
    """Recordings as bytes; none where that is not possible."""
    try:
        module = build_module(source, dtype=dtype)
        return packed([recorded(source, module, size, dtype) for size in sizes]) or b""
    except Exception:
        # Of any kind: the model's code is a user's, and so is what it returns.
        return b""


def _unpacked(data: bytes) -> list[Recording]:
    """Recordings from bytes; none where they are no recordings."""
    with contextlib.suppress(ValueError):
        return unpacked(data) if data else []
    return []


def record(
    source: ModelSource, module: nn.Module, batch_size: int, dtype: Dtype = "float32"
) -> Recording:
    """The forward pass alone: what is called and what flows, for one micro-batch.

    Args:
        source: What the model takes.
        module: From `build_module(source, dtype=dtype)`.
        batch_size: Samples of the micro-batch.
        dtype: Of the job.

    Raises:
        HeterpsError: The forward pass fails.
    """
    recorder = Recorder(module)
    with _user_errors(source, batch_size), autocast(dtype, "cpu"):
        recorder.run(*arguments(source, meta_inputs(source, batch_size), dtype))
    return recorder.recording


@contextmanager
def _user_errors(source: ModelSource, batch_size: int) -> Iterator[None]:
    """Turns any failure of the user's forward pass into one line."""
    try:
        yield
    except HeterpsError:
        raise
    except Exception as error:
        shapes = ", ".join(f"{e.name} {(batch_size, *e.shape)} {e.dtype}" for e in source.inputs)
        reason = (str(error).strip().splitlines() or ["no message"])[0]
        raise HeterpsError(
            f"{source.factory or source.architecture}: its forward pass fails on {shapes}: "
            f"{type(error).__name__}: {reason}"
        ) from error
