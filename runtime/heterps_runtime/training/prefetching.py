"""Reads the next batches while a step runs, so that no step waits for its data."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor

from heterps_runtime.training.batches import BatchSource, Needs, StepBatches

AHEAD = 2


class Prefetched:
    """Batches in the order of steps, read ahead by a thread.

    Args:
        source: Where they come from; only the thread asks it.
        needs: What this rank reads.
        stop: The step behind the last one.
    """

    def __init__(self, source: BatchSource, needs: Needs, stop: int) -> None:
        self._source, self._needs, self._stop = source, needs, stop
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="batches")
        self._reading: dict[int, Future[StepBatches]] = {}

    def of_step(self, step: int) -> StepBatches:
        """The batches of a step; those behind it are being read from now on."""
        for number in range(step, min(step + 1 + AHEAD, max(self._stop, step + 1))):
            if number not in self._reading:
                self._reading[number] = self._thread.submit(self._source.read, number, self._needs)
        for number in [known for known in self._reading if known < step]:
            self._reading.pop(number).cancel()
        return self._reading.pop(step).result()

    def close(self) -> None:
        """Reads nothing more."""
        self._thread.shutdown(wait=False, cancel_futures=True)
