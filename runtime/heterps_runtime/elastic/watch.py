"""The watch of an elastic worker: threads that show signs of life and listen for new notices.

The training thread may wait for a rank that has gone, in a call that nothing interrupts. When its
generation is superseded, the watch cuts its connections; where it then still does not come back,
the watch ends the process, and the supervisor starts another.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable

from heterps_runtime.elastic.sockets import Connections
from heterps_runtime.elastic.store import beat, connect, wait_for_head
from heterps_runtime.transport.lost_ranks import LostRankError

BEAT_EVERY_S = 0.1
# Exit codes: the training thread did not come back; the supervisor has gone.
STUCK, LOST_SUPERVISOR = 75, 76

logger = logging.getLogger(__name__)


class Watch:
    """Runs beside the training thread.

    Args:
        port: Of the supervisor's store.
        device: Of this process.
        progress: How far the training thread is; any change is progress.
        grace_s: What the training thread gets to leave a generation that has been superseded.
    """

    def __init__(self, port: int, device: str, progress: Callable[[], str], grace_s: float) -> None:
        self._port, self._device, self._progress, self._grace_s = port, device, progress, grace_s
        self._lock = threading.Lock()
        self._generation: int | None = None
        self._connections: Connections | None = None
        self._ending: int | None = None
        self._interrupted_s: float | None = None
        self._newest, self._broken_below = -1, 0
        for work in (self._beat, self._listen):
            threading.Thread(target=self._while_led, args=(work,), daemon=True).start()

    @property
    def is_ending(self) -> bool:
        """Whether the supervisor wants the generation to end at the next step boundary."""
        return self._ending is not None and self._ending == self._generation

    def enter(self, generation: int) -> None:
        """The training thread begins a generation; what it connects from here on belongs to it."""
        with self._lock:
            self._generation, self._connections = generation, Connections()
            self._interrupted_s = None

    def leave(self, *, is_broken: bool) -> None:
        """The training thread has left it.

        Args:
            is_broken: Other ranks, which may wait for this one, get an error.
        """
        with self._lock:
            connections, self._connections = self._connections, None
            self._generation = None
        if connections is not None and is_broken:
            connections.cut()

    def _beat(self) -> None:
        store = connect(self._port)
        while True:
            beat(store, self._device, self._progress())
            self._react()
            time.sleep(BEAT_EVERY_S)

    def _listen(self) -> None:
        store, number = connect(self._port), 0
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

    def _while_led(self, work: Callable[[], None]) -> None:
        """Goes on until the supervisor has gone; then nobody else is to stay."""
        try:
            work()
        except LostRankError as error:
            logger.info("the supervisor has gone: %s", str(error).partition("\n")[0])
            os._exit(LOST_SUPERVISOR)

    def _interrupt(self, generation: int) -> None:
        """Cuts the connections of a superseded generation, again and again: some are made anew."""
        with self._lock:
            if self._generation != generation:
                return
            assert self._connections is not None
            if self._interrupted_s is None:
                logger.info("generation %d is superseded", generation)
                self._interrupted_s = time.monotonic()
            self._connections.cut()
            if time.monotonic() - self._interrupted_s > self._grace_s:
                logger.error("the training thread hangs in generation %d; ending", generation)
                os._exit(STUCK)
