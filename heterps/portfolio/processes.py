"""The processes that search beside this one."""

from __future__ import annotations

import queue
from collections.abc import Sequence
from types import TracebackType
from typing import Self

from heterps.portfolio.task import SearchAnswer, SearchTask
from heterps_agents.interface.background import BackgroundWorker

_WORKER = "heterps.portfolio.worker"
# Between two looks at whether a process has ended without an answer.
_LOOK_S = 0.1


class Processes:
    """One process for each task, from the beginning of a `with` block to its end at most.

    Args:
        tasks: What they search.
    """

    def __init__(self, tasks: Sequence[SearchTask]) -> None:
        self._tasks = tasks
        self._workers: list[tuple[BackgroundWorker, queue.SimpleQueue[SearchAnswer]]] = []

    def __enter__(self) -> Self:
        """Starts them all."""
        for task in self._tasks:
            found: queue.SimpleQueue[SearchAnswer] = queue.SimpleQueue()
            worker = BackgroundWorker(_WORKER, found.put)
            self._workers.append((worker, found))
            worker.ask(lambda task=task: task)  # type: ignore[misc]
        return self

    def __exit__(
        self,
        error_type: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Ends those that still search."""
        for worker, _ in self._workers:
            worker.end()

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes."""
        return [worker.pid for worker, _ in self._workers]

    def answers(self, *, waits: bool) -> list[SearchAnswer | None]:
        """Those of all of them; None of one that has none, or none yet.

        Args:
            waits: Whether for each of them until it has an answer, or has ended without one.
        """
        return [self._answer(worker, found, waits) for worker, found in self._workers]

    def _answer(
        self, worker: BackgroundWorker, found: queue.SimpleQueue[SearchAnswer], waits: bool
    ) -> SearchAnswer | None:
        while waits and worker.is_alive and found.empty():
            worker.wait(_LOOK_S)
        return None if found.empty() else found.get()
