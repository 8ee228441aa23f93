"""A search for plans in a process of its own, asked for answers now and then."""

from __future__ import annotations

import queue
from contextlib import suppress
from typing import Protocol

from heterps.online.search import Answer, SearchTask
from heterps_agents.interface.background import BackgroundWorker


class Search(Protocol):
    """Works on one task."""

    def poll(self) -> list[Answer | str]:
        """Answers that have come since the last call; a text says why there are no more."""
        ...

    def is_working(self) -> bool:
        """Whether more answers may come."""
        ...

    def close(self) -> bool:
        """Ends it; whether it had not ended by itself."""
        ...


class BackgroundSearch:
    """The work is done by `heterps.online.worker`, at a low priority, once there is a task."""

    def __init__(self) -> None:
        self._answers: queue.SimpleQueue[Answer | str] = queue.SimpleQueue()
        self.worker = BackgroundWorker("heterps.online.worker", self._answers.put)

    def begin(self, task: SearchTask) -> None:
        """Says what is asked for."""
        self.worker.ask(lambda: task)

    def poll(self) -> list[Answer | str]:
        """Answers that have come; never waits."""
        found: list[Answer | str] = []
        with suppress(queue.Empty):
            while True:
                found.append(self._answers.get_nowait())
        return found

    def is_working(self) -> bool:
        """Whether the process has not ended, or answers wait to be polled."""
        return self.worker.is_alive or not self._answers.empty()

    def close(self) -> bool:
        """Ends it; whether it had not ended by itself."""
        return self.worker.end()


class BackgroundSearches:
    """Starts searches; a process that has imported everything already waits for the next one."""

    def __init__(self) -> None:
        self._spare = BackgroundSearch()

    def __call__(self, task: SearchTask) -> BackgroundSearch:
        """Begins a search."""
        search, self._spare = self._spare, BackgroundSearch()
        search.begin(task)
        return search

    def close(self) -> None:
        """Ends the process that waits."""
        self._spare.close()
