"""Cutting the connections of a process group from another thread.

gloo can neither abort an operation nor a process group: who waits for a rank that hangs waits until
a time limit. A connection that the own side shuts down wakes the waiting thread at once, with the
error that the end of the other process would bring. On systems without /proc nothing is cut.
"""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path

_DESCRIPTORS = Path("/proc/self/fd")


def open_sockets() -> dict[str, int]:
    """Descriptors of this process's sockets by the socket's own name, which is never used twice."""
    found = {}
    for path in _DESCRIPTORS.iterdir() if _DESCRIPTORS.is_dir() else ():
        with contextlib.suppress(OSError):  # closed in the meantime
            target = os.readlink(path)
            if target.startswith("socket:"):
                found[target] = int(path.name)
    return found


class Connections:
    """The connections that this process opens from now on."""

    def __init__(self) -> None:
        self._earlier = frozenset(open_sockets())

    def cut(self) -> None:
        """Shuts them down; whoever waits for one of them, here or at its other end, gets an error.

        The descriptors stay open: their owners close them.
        """
        for name, descriptor in open_sockets().items():
            if name not in self._earlier:
                # Its owner may have closed it, or it is not connected.
                with contextlib.suppress(OSError):
                    _shut_down(descriptor)


def _shut_down(descriptor: int) -> None:
    with socket.socket(fileno=os.dup(descriptor)) as own:
        if own.family == socket.AF_UNIX:
            return  # to a process that reads samples for this one
        # gloo ends the process when a socket that it listens on is shut down.
        if not own.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            own.shutdown(socket.SHUT_RDWR)
