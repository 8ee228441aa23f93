"""A search for plans in a process of its own, asked for answers now and then."""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from contextlib import suppress
from typing import Protocol

from heterps.online.search import Answer, SearchTask, answers


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


class InlineSearch:
    """Does all the work at once, in this process."""

    def __init__(self, task: SearchTask) -> None:
        self._answers: list[Answer | str] = list(answers(task))

    def poll(self) -> list[Answer | str]:
        """All answers, the first time."""
        found, self._answers = self._answers, []
        return found

    def is_working(self) -> bool:
        """Not any more."""
        return bool(self._answers)

    def close(self) -> bool:
        """It ended long ago."""
        return False


class BackgroundSearch:
    """The work is done by `heterps.online.worker`, at a low priority.

    Args:
        task: What is asked for.
        process: A worker that waits for its task; by default a new one.
    """

    def __init__(self, task: SearchTask, process: subprocess.Popen[bytes] | None = None) -> None:
        self._answers: queue.SimpleQueue[Answer | str] = queue.SimpleQueue()
        self._process = process or waiting_process()
        self._thread = threading.Thread(target=self._serve, args=(task,), daemon=True)
        self._thread.start()

    def poll(self) -> list[Answer | str]:
        """Answers that have come; never waits."""
        found: list[Answer | str] = []
        with suppress(queue.Empty):
            while True:
                found.append(self._answers.get_nowait())
        return found

    def wait(self, seconds: float) -> bool:
        """Waits until it has ended; whether it has."""
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def is_working(self) -> bool:
        """Whether the process has not ended, or answers wait to be polled."""
        return self._thread.is_alive() or not self._answers.empty()

    def close(self) -> bool:
        """Kills it where it still works; whether it did."""
        is_working = self._process.poll() is None and self._thread.is_alive()
        self._process.kill()
        self._thread.join(timeout=5)
        end_process(self._process)
        return is_working

    def _serve(self, task: SearchTask) -> None:
        """Sends the task, which fills the pipe more than once, and takes the answers."""
        process = self._process
        assert process.stdin is not None
        assert process.stdout is not None
        with suppress(BrokenPipeError, EOFError, pickle.UnpicklingError, OSError, ValueError):
            pickle.dump(task, process.stdin)
            process.stdin.flush()
            while True:
                self._answers.put(pickle.load(process.stdout))


class BackgroundSearches:
    """Starts searches; a process that has imported everything already waits for the next one."""

    def __init__(self) -> None:
        self._spare: subprocess.Popen[bytes] | None = waiting_process()

    def __call__(self, task: SearchTask) -> BackgroundSearch:
        """Begins a search."""
        search = BackgroundSearch(task, self._spare)
        self._spare = waiting_process()
        return search

    def close(self) -> None:
        """Ends the process that waits."""
        if self._spare is not None:
            end_process(self._spare)
            self._spare = None


def waiting_process() -> subprocess.Popen[bytes]:
    """A worker that waits for its task."""
    return subprocess.Popen(
        [sys.executable, "-m", "heterps.online.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
        # A user's Ctrl-C is for the run, which then closes the search.
        start_new_session=True,
    )


def end_process(process: subprocess.Popen[bytes]) -> None:
    """Kills a worker and closes its pipes."""
    process.kill()
    process.wait()
    for stream in (process.stdin, process.stdout):
        if stream is not None:
            with suppress(OSError):
                stream.close()
