"""Reads the next batches in processes of their own: for samples that cost time to make.

A worker makes a rank's whole part of a step. It is forked from the rank, so that a data set needs
not be picklable; what it inherits of the rank's connections it lets go of, so that other ranks
notice at once where the rank itself has gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import stat
from collections.abc import Iterator
from contextlib import suppress
from typing import NamedTuple, cast

import torch
from torch.utils.data import DataLoader, Dataset

from heterps_configs.errors import HeterpsError
from heterps_runtime.training.batches import BatchSource, Needs, StepBatches
from heterps_runtime.training.samples import reads_only

# Steps that each worker is ahead.
AHEAD = 2
# Of Linux: the signal that a process gets when its parent has ended.
_PR_SET_PDEATHSIG = 1


class _Failure(NamedTuple):
    """What a worker could not read, and why."""

    message: str


class _Steps(Dataset[StepBatches | _Failure]):
    """A rank's part of each step, by number."""

    def __init__(self, source: BatchSource, needs: Needs) -> None:
        self._source, self._needs = source, needs

    def __getitem__(self, step: int) -> StepBatches | _Failure:
        try:
            return self._source.read(step, self._needs)
        except HeterpsError as error:
            return _Failure(str(error))
        except Exception as error:
            return _Failure(f"{type(error).__name__}: {error}")


class ReadByWorkers:
    """Batches in the order of steps, read ahead by processes.

    Args:
        source: Where they come from; each worker has a copy.
        needs: What this rank reads.
        stop: The step behind the last one.
        num_workers: Processes.
    """

    def __init__(self, source: BatchSource, needs: Needs, stop: int, num_workers: int) -> None:
        self._steps, self._stop, self._num_workers = _Steps(source, needs), stop, num_workers
        self._iterator: Iterator[StepBatches | _Failure] | None = None
        self._next = 0

    def of_step(self, step: int) -> StepBatches:
        """The batches of a step; those behind it are being read from now on.

        Raises:
            HeterpsError: They cannot be read, or a worker has ended.
        """
        if self._iterator is None or step != self._next:
            self.close()
            self._iterator = self._begin(step)
        self._next = step + 1
        try:
            found = next(self._iterator)
        except RuntimeError as error:
            self.close()
            raise HeterpsError(f"data: a process that reads samples has ended: {error}") from error
        if isinstance(found, _Failure):
            self.close()
            raise HeterpsError(found.message)
        return found

    def close(self) -> None:
        """Ends the workers."""
        iterator, self._iterator = self._iterator, None
        if iterator is not None:
            # The public way is to wait for the garbage collector, whenever that comes.
            cast("_Shuts", iterator)._shutdown_workers()

    def _begin(self, step: int) -> Iterator[StepBatches | _Failure]:
        loader = DataLoader(
            self._steps,
            batch_size=None,
            sampler=range(step, max(self._stop, step + 1)),
            num_workers=self._num_workers,
            prefetch_factor=AHEAD,
            multiprocessing_context="fork",
            worker_init_fn=_leave_rank,
            # Without one, it would draw from the numbers of whoever trains.
            generator=torch.Generator(),
        )
        return iter(loader)


class _Shuts:
    def _shutdown_workers(self) -> None: ...


def _leave_rank(worker: int) -> None:
    """Makes a worker one that ends with its rank, and holds none of its connections."""
    reads_only()
    # Data in a row would give each worker a part of them; each goes through all, for its steps.
    torch.utils.data._utils.worker._worker_info = None
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    nothing = os.open(os.devnull, os.O_RDWR)
    for name in os.listdir("/proc/self/fd") if os.path.isdir("/proc/self/fd") else ():
        with suppress(OSError):
            if stat.S_ISSOCK(os.fstat(int(name)).st_mode):
                # Its number stays taken: objects of the rank that know it are still here.
                os.dup2(nothing, int(name))
    os.close(nothing)
