"""A connection between two hosts that have proved to one another who they are.

It carries bytes, as a socket does; whatever else somebody puts into it ends it.
"""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable
from typing import Self

from heterps_runtime.network.frames import (
    MAX_PAYLOAD_BYTES,
    BrokenConnectionError,
    Opener,
    Sealer,
)
from heterps_runtime.network.handshake import Keys, call, greet_caller

# A handshake takes two journeys; who needs longer is not one of us.
HANDSHAKE_S = 5.0
# A host that vanishes without closing anything is noticed after so long.
SILENCE_S = 10.0
_KEEPALIVE = {"TCP_KEEPIDLE": 4, "TCP_KEEPINTVL": 2, "TCP_KEEPCNT": 3}


class Connection:
    """One connection. One thread may send while another receives.

    Args:
        own: The socket, which belongs to the connection from here on.
        keys: That the handshake has made.
    """

    def __init__(self, own: socket.socket, keys: Keys) -> None:
        self._socket, self._lock = own, threading.Lock()
        own.settimeout(None)
        _notice_silence(own)
        self._sealer = Sealer(keys.sending)
        self._opener = Opener(keys.receiving, lambda count: _receive_exactly(own, count))
        self._is_closed = False

    @classmethod
    def called(cls, own: socket.socket, secret: bytes) -> Self:
        """The side that was called.

        Raises:
            OSError: The caller does not know the secret, or took too long.
        """
        return cls._agreed(own, secret, greet_caller)

    @classmethod
    def calling(cls, own: socket.socket, secret: bytes) -> Self:
        """The caller's side.

        Raises:
            OSError: The other side does not know the secret, or took too long.
        """
        return cls._agreed(own, secret, call)

    @classmethod
    def _agreed(
        cls,
        own: socket.socket,
        secret: bytes,
        part: Callable[[Callable[[bytes], None], Callable[[int], bytes], bytes], Keys],
    ) -> Self:
        deadline_s = time.monotonic() + HANDSHAKE_S
        own.settimeout(HANDSHAKE_S)

        def receive(count: int) -> bytes:
            return _receive_exactly(own, count, deadline_s)

        return cls(own, part(own.sendall, receive, secret))

    def send(self, data: bytes) -> None:
        """Sends bytes, in as many frames as it takes.

        Raises:
            OSError: The connection has ended.
        """
        with self._lock:
            if self._is_closed:
                raise BrokenConnectionError("closed on this side")
            for start in range(0, len(data), MAX_PAYLOAD_BYTES):
                self._socket.sendall(self._sealer.seal(data[start : start + MAX_PAYLOAD_BYTES]))

    def receive(self) -> bytes:
        """The next bytes; none where the other side has ended the connection.

        Raises:
            OSError: It was broken.
        """
        return self._opener.open()

    def receive_within(self, seconds: float) -> bytes:
        """The same, for the beginning of a conversation.

        Raises:
            OSError: It was broken, or nothing came.
        """
        self._socket.settimeout(seconds)
        try:
            return self.receive()
        finally:
            self._socket.settimeout(None)

    def close(self) -> None:
        """Ends it; the other side sees that it was meant so."""
        # Who is about to send and cannot must not hold up the end.
        if self._lock.acquire(timeout=0.5):
            try:
                if not self._is_closed:
                    self._is_closed = True
                    with contextlib.suppress(OSError):
                        self._socket.settimeout(0.5)
                        self._socket.sendall(self._sealer.seal(b""))
            finally:
                self._lock.release()
        self.cut()

    def cut(self) -> None:
        """Ends it as a fault would."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def release(self) -> None:
        """Gives the descriptor back; nobody may use the connection any more."""
        self._socket.close()


def _receive_exactly(own: socket.socket, count: int, deadline_s: float | None = None) -> bytes:
    data = bytearray()
    while len(data) < count:
        if deadline_s is not None:
            left_s = deadline_s - time.monotonic()
            if left_s <= 0:
                raise TimeoutError("the handshake took too long")
            own.settimeout(left_s)
        part = own.recv(count - len(data))
        if not part:
            raise BrokenConnectionError("the connection broke")
        data += part
    return bytes(data)


def _notice_silence(own: socket.socket) -> None:
    """The system asks the other side now and then, and ends a connection that does not answer."""
    own.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    own.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    options = {**_KEEPALIVE, "TCP_USER_TIMEOUT": int(1e3 * SILENCE_S)}
    for name, value in options.items():
        number = getattr(socket, name, None)  # not everywhere
        if number is not None:
            own.setsockopt(socket.IPPROTO_TCP, number, value)
