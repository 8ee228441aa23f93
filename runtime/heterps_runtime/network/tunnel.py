"""A tunnel to host 0: a port of this host's loopback that leads to a service there."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from typing import Self

from heterps_runtime.network.dial import AGAIN_S, Host0, dial
from heterps_runtime.network.handshake import NotHeterpsError, WrongSecretError
from heterps_runtime.network.relay import LOOPBACK, relay

_BACKLOG = 128
# Host 0 may turn a caller away while strangers crowd its gate.
_ATTEMPTS_S = 10.0


class Tunnel(contextlib.AbstractContextManager["Tunnel", None]):
    """Listens from entering to leaving; each connection is one to the service.

    Args:
        host_0: Where the service is.
        service: Its name.

    Attributes:
        port: Of the loopback.
    """

    def __init__(self, host_0: Host0, service: str) -> None:
        self._host_0, self._service = host_0, service
        self._listener = socket.create_server((LOOPBACK, 0), backlog=_BACKLOG)
        self.port: int = self._listener.getsockname()[1]
        self._open: set[socket.socket] = set()

    def __enter__(self) -> Self:
        threading.Thread(target=self._listen, daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for plain in list(self._open):
            with contextlib.suppress(OSError):
                plain.shutdown(socket.SHUT_RDWR)

    def _listen(self) -> None:
        while True:
            try:
                plain, _ = self._listener.accept()
            except OSError:
                return
            self._open.add(plain)
            threading.Thread(target=self._pass_on, args=(plain,), daemon=True).start()

    def _pass_on(self, plain: socket.socket) -> None:
        try:
            deadline_s = time.monotonic() + _ATTEMPTS_S
            while True:
                try:
                    connection = dial(self._host_0, {"service": self._service})
                    break
                except (WrongSecretError, NotHeterpsError):
                    return
                except OSError:
                    if time.monotonic() > deadline_s:
                        return
                    time.sleep(AGAIN_S)
            relay(plain, connection)
        finally:
            plain.close()
            self._open.discard(plain)
