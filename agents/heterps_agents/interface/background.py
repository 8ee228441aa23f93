"""A process of its own that is asked for plans and answers in its own time, while a run goes on.

Requests and answers are pickled, over the process's input and output: pipes without a name between
a process and its own child, which no other user of the machine can open and nothing of another host
reaches. (Whoever may open them may as well change the memory of both.) It ends as soon as its input
ends, which is when whoever started it does, however that happens.
"""

from __future__ import annotations

import os
import pickle
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any, BinaryIO

# A process that is killed, or has ended, in the middle of a message.
_BROKEN = (EOFError, pickle.UnpicklingError, OSError, ValueError)


class BackgroundWorker:
    """The side of whoever asks; it never waits for the other.

    Args:
        module: What the process runs; it calls `serve`.
        take: Receives every answer, in a thread.
    """

    def __init__(self, module: str, take: Callable[[Any], None]) -> None:
        self._take = take
        self._asked: queue.SimpleQueue[Callable[[], object] | None] = queue.SimpleQueue()
        self._process = subprocess.Popen(
            [sys.executable, "-m", module],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"},
            # A user's Ctrl-C is for the run, which then ends this.
            start_new_session=True,
        )
        self._sender = threading.Thread(target=self._send, daemon=True)
        self._receiver = threading.Thread(target=self._receive, daemon=True)
        self._sender.start()
        self._receiver.start()

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self._process.pid

    @property
    def is_alive(self) -> bool:
        """Whether answers may come."""
        return self._receiver.is_alive()

    def ask(self, request: Callable[[], object]) -> None:
        """Sends what `request` makes, in a thread; nothing where that is None.

        Nobody may change it then. Documents may learn more of themselves: that is not sent.
        """
        self._asked.put(request)

    def wait(self, seconds: float) -> bool:
        """Waits until the process has ended by itself; whether it has."""
        self._receiver.join(seconds)
        return not self.is_alive

    def end(self) -> bool:
        """Ends the process; whether it had not ended by itself."""
        is_working = self._process.poll() is None and self.is_alive
        self._process.kill()
        self._process.wait()
        self._asked.put(None)
        for thread in (self._sender, self._receiver):
            thread.join(timeout=5)
        for stream in (self._process.stdin, self._process.stdout):
            assert stream is not None
            with suppress(OSError):
                stream.close()
        return is_working

    def _send(self) -> None:
        assert self._process.stdin is not None
        try:
            with suppress(*_BROKEN):
                while (make := self._asked.get()) is not None:
                    request = make()
                    if request is not None:
                        # Whole, so that what cannot be pickled breaks no message.
                        self._process.stdin.write(pickle.dumps(request))
                        self._process.stdin.flush()
        finally:
            # It would wait for ever for what never comes, and others for its answer.
            self._process.kill()

    def _receive(self) -> None:
        assert self._process.stdout is not None
        with suppress(*_BROKEN):
            while True:
                self._take(pickle.load(self._process.stdout))


def serve(
    answers: Callable[[Any], Iterable[object]],
    *,
    prepare: Callable[[], None] = lambda: None,
    is_single: bool = False,
) -> None:
    """The side of the process: answers requests, each until the next one is there.

    Args:
        answers: What comes of a request, one after the other.
        prepare: Called first.
        is_single: The process ends after the answers to one request.
    """
    # What libraries print must not come between the answers.
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    requests: queue.SimpleQueue[object] = queue.SimpleQueue()
    threading.Thread(target=_read, args=(sys.stdin.buffer, requests), daemon=True).start()
    prepare()
    with suppress(BrokenPipeError):
        while True:
            for answer in answers(requests.get()):
                pickle.dump(answer, out)
                out.flush()
                if not requests.empty():
                    break
            if is_single:
                break
    # The thread still reads, and torch's destructors take their time.
    os._exit(0)


def _read(source: BinaryIO, requests: queue.SimpleQueue[object]) -> None:
    try:
        while True:
            requests.put(pickle.load(source))
    finally:
        # Whoever asked is gone, or asks what is unknown here; the main thread may be in the middle
        # of an answer.
        os._exit(0)
