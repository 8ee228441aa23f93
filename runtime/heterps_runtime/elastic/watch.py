"""The watch of an elastic worker: threads that show signs of life and listen for new notices.

The training thread may wait for a rank that has gone, in a call that nothing interrupts. When its
generation is superseded, the watch cuts its connections; where the thread then neither comes back
nor does anything, the watch writes into the log where it stands and ends the process, and the
supervisor starts another. A thread that computes is not disturbed: it finds out when it is done.
"""

from __future__ import annotations

import faulthandler
import logging
import os
import sys
import threading
import time
from collections.abc import Callable
from typing import NamedTuple

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from heterps_runtime.elastic.sockets import Connections
from heterps_runtime.elastic.store import CONNECT_TRIES, beat, connect, wait_for_head
from heterps_runtime.transport.lost_ranks import LostRankError

BEAT_EVERY_S = 0.1
# A training thread that has computed for so long since it was looked at has not hung.
ALIVE_CPU_S = 0.02
# Exit codes: the training thread did not come back; the supervisor has gone.
STUCK, LOST_SUPERVISOR = 75, 76

logger = logging.getLogger(__name__)


class Watch:
    """Runs beside the training thread.

    Args:
        port: Of the supervisor's store.
        device: Of this process.
        progress: How far the training thread is; any change is progress.
        leave_s: What the training thread gets to leave a generation that has been superseded,
            beside the time in which it does something.

    The thread that makes a watch is the one that trains.
    """

    def __init__(self, port: int, device: str, progress: Callable[[], str], leave_s: float) -> None:
        self._device, self._progress, self._leave_s = device, progress, leave_s
        self._limit_s = leave_s
        self._cpu_clock = time.pthread_getcpuclockid(threading.get_ident())
        self._lock = threading.Lock()
        self._generation: int | None = None
        self._connections: Connections | None = None
        self._ending: int | None = None
        self._interrupted: _Life | None = None
        self._newest, self._broken_below = -1, 0
        # Now: what is connected later belongs to a generation, and may be cut with it.
        for work, store in [(self._beat, connect(port)), (self._listen, connect(port))]:
            threading.Thread(target=self._while_led, args=(work, store), daemon=True).start()

    @property
    def is_ending(self) -> bool:
        """Whether the supervisor wants the generation to end at the next step boundary."""
        return self._ending is not None and self._ending == self._generation

    def enter(self, generation: int, connect_s: float) -> None:
        """The training thread begins a generation; what it connects from here on belongs to it.

        Args:
            generation: Its number.
            connect_s: How long one try to connect may take; nothing interrupts it, and the next.
        """
        with self._lock:
            self._limit_s = max(self._leave_s, 1.2 * CONNECT_TRIES * connect_s)
            self._generation, self._connections = generation, Connections()
            self._interrupted = None

    def cut(self) -> None:
        """Other ranks, which may wait for this one, get an error, and so do threads of this one."""
        with self._lock:
            assert self._connections is not None
            self._connections.cut()

    def leave(self) -> None:
        """The training thread has left it, and holds nothing of it any more."""
        with self._lock:
            self._generation = self._connections = None

    def _beat(self, store: TCPStore) -> None:
        while True:
            beat(store, self._device, self._progress())
            self._react()
            time.sleep(BEAT_EVERY_S)

    def _listen(self, store: TCPStore) -> None:
        number = 0
        while True:
            self._broken_below = wait_for_head(store, number, logger.warning)
            self._newest = number
            number += 1
            self._react()

    def _react(self) -> None:
        """Ends the own generation where it is superseded."""
        generation = self._generation
        if generation is None or self._newest <= generation:
            return
        if generation < self._broken_below:
            self._interrupt(generation)
        else:
            self._ending = generation

    def _while_led(self, work: Callable[[TCPStore], None], store: TCPStore) -> None:
        """Goes on until the supervisor has gone; then nobody else is to stay."""
        try:
            work(store)
        except LostRankError as error:
            logger.info("the supervisor has gone: %s", str(error).partition("\n")[0])
            os._exit(LOST_SUPERVISOR)

    def _interrupt(self, generation: int) -> None:
        """Cuts the connections of a superseded generation, again and again: some are made anew."""
        with self._lock:
            if self._generation != generation:
                return
            assert self._connections is not None
            life = _Life(time.monotonic(), time.clock_gettime(self._cpu_clock), self._progress())
            if self._interrupted is None:
                logger.info("generation %d is superseded", generation)
                self._interrupted = life
            self._connections.cut()
            if life.is_after(self._interrupted):
                self._interrupted = life
            elif life.at_s - self._interrupted.at_s > self._limit_s:
                logger.error("the training thread hangs in generation %d; ending", generation)
                sys.stderr.flush()
                faulthandler.dump_traceback(2)
                os._exit(STUCK)


class _Life(NamedTuple):
    """What there is to see of the training thread at a moment."""

    at_s: float
    cpu_s: float
    progress: str

    def is_after(self, earlier: _Life) -> bool:
        """Whether it has done something since."""
        return self.progress != earlier.progress or self.cpu_s > earlier.cpu_s + ALIVE_CPU_S
