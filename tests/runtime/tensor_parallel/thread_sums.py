"""A tensor-parallel group of threads: sums by a barrier and a shared list.

One thread computes at a time, and keeps its random numbers: their generator is the process's.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
_PATIENCE_S = 30.0


class ThreadGroup:
    """Ranks that are threads of this process."""

    def __init__(self, degree: int) -> None:
        self.degree = degree
        self._barrier, self._turn = threading.Barrier(degree), threading.Lock()
        self._places: list[Tensor | None] = [None] * degree
        self.num_sums = 0

    def sums(self, rank: int) -> ThreadSums:
        """What one rank calls."""
        return ThreadSums(self, rank)

    def exchange(self, rank: int, tensor: Tensor) -> list[Tensor]:
        """All ranks' tensors, in their order."""
        self._places[rank] = tensor.detach()
        self._wait()
        found = [place.clone() for place in self._places if place is not None]
        self.num_sums += rank == 0
        self._wait()
        return found

    def _wait(self) -> None:
        """The others' turns, until all are here."""
        state = torch.get_rng_state()
        self._turn.release()
        try:
            self._barrier.wait(_PATIENCE_S)
        finally:
            self._turn.acquire()
            torch.set_rng_state(state)

    def run(self, work: Callable[[int], T]) -> list[T]:
        """Calls `work` with each rank, side by side; one that fails lets the others go."""

        def guarded(rank: int) -> T:
            try:
                with self._turn:
                    return work(rank)
            except BaseException:
                self._barrier.abort()
                raise

        with ThreadPoolExecutor(self.degree) as pool:
            futures = [pool.submit(guarded, rank) for rank in range(self.degree)]
            errors = [future.exception() for future in futures]
            for error in errors:
                if error is not None and not isinstance(error, threading.BrokenBarrierError):
                    raise error
            return [future.result() for future in futures]


class ThreadSums:
    """See `GroupSums`."""

    def __init__(self, group: ThreadGroup, rank: int) -> None:
        self._group, self._rank = group, rank

    def sum(self, tensor: Tensor) -> Tensor:
        """See `GroupSums.sum`."""
        return torch.stack(self._group.exchange(self._rank, tensor)).sum(0)

    def max(self, tensor: Tensor) -> Tensor:
        """See `GroupSums.max`."""
        return torch.stack(self._group.exchange(self._rank, tensor)).amax(0)
