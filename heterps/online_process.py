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

from heterps.online_search import Answer, SearchTask, answers


class Search(Protocol):
    """Works on one task."""

    def poll(self) -> list[Answer | str]:
        """Answers that have come since the last call; a text says why there are no more."""
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

    def close(self) -> bool:
        """It ended long ago."""
        return False


class BackgroundSearch:
    """The work is done by `heterps.online_worker`, at a low priority.

    Args:
        task: What is asked for.
    """

    def __init__(self, task: SearchTask) -> None:
        self._answers: queue.SimpleQueue[Answer | str] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "heterps.online_worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
            # A user's Ctrl-C is for the run, which then closes the search.
            start_new_session=True,
        )
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

    def close(self) -> bool:
        """Kills it where it still works; whether it did."""
        is_working = self._process.poll() is None and self._thread.is_alive()
        self._process.kill()
        self._process.wait()
        self._thread.join(timeout=5)
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
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
