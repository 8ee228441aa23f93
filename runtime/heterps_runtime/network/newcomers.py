"""Those who have connected and not shown yet who they are: only so many, each for a short time."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections import Counter

MOST = 64


class Newcomers:
    """The connections that are not authenticated yet.

    Who comes when there are too many takes the place of the longest-waiting of the address that has
    most: a handshake takes milliseconds, and somebody who opens a thousand connections from one
    address keeps nobody out.

    Args:
        most: At one time.
    """

    def __init__(self, most: int = MOST) -> None:
        self._most, self._lock = most, threading.Lock()
        self._waiting: dict[socket.socket, str] = {}  # in the order in which they came

    def __len__(self) -> int:
        return len(self._waiting)

    def admit(self, own: socket.socket, address: str) -> None:
        """One more; another one may have to go."""
        with self._lock:
            self._waiting[own] = address
            if len(self._waiting) > self._most:
                ((most, _),) = Counter(self._waiting.values()).most_common(1)
                oldest = next(key for key, value in self._waiting.items() if value == most)
                del self._waiting[oldest]
                # Its thread wakes, and closes it.
                with contextlib.suppress(OSError):
                    oldest.shutdown(socket.SHUT_RDWR)

    def leave(self, own: socket.socket) -> None:
        """This one is no newcomer any more."""
        with self._lock:
            self._waiting.pop(own, None)
