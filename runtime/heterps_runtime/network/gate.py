"""The gate of host 0: all that listens on the network, and only for those who know the secret.

Services on this host's loopback stay there. Who has shown to be of the run names the service that
it wants, and the gate passes on what comes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import socket
import threading
import time
from collections.abc import Callable
from typing import Any, Self

from heterps_configs.errors import HeterpsError
from heterps_runtime.network.connection import HANDSHAKE_S, Connection
from heterps_runtime.network.dial import Host0
from heterps_runtime.network.handshake import WrongSecretError
from heterps_runtime.network.newcomers import Newcomers
from heterps_runtime.network.relay import LOOPBACK, relay

_BACKLOG = 1024
# Strangers that are spoken of; a thousand of them would fill the screen.
_MOST_REMARKS = 5
# While there are no descriptors or threads left.
_PAUSE_S = 0.05
Hello = dict[str, Any]
Service = Callable[[Connection, Hello], None]


class Gate(contextlib.AbstractContextManager["Gate", None]):
    """Listens from entering to leaving.

    Args:
        own: Where; the address of this host.
        on_message: Receives remarks, from other threads: who was turned away.

    Raises:
        HeterpsError: On entering: the port is in use.
    """

    def __init__(self, own: Host0, on_message: Callable[[str], None]) -> None:
        self._own, self._on_message = own, on_message
        self._services: dict[str, Service] = {}
        self._newcomers, self._lock = Newcomers(), threading.Lock()
        self._strangers: set[tuple[str, str]] = set()
        self._connections: set[Connection] = set()
        self._is_closed = False

    def __enter__(self) -> Self:
        self._listener = _listen(self._own, self._on_message)
        threading.Thread(target=self._take_newcomers, daemon=True).start()
        return self

    def __exit__(self, *raised: object) -> None:
        self._is_closed = True
        # Closing alone does not wake who waits for somebody to come.
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            connections = list(self._connections)
        for connection in connections:
            connection.close()

    def serve(self, name: str, service: Service) -> None:
        """From here on there is this service; it is called in a thread of each connection."""
        self._services[name] = service

    def forward(self, name: str, port: int) -> None:
        """From here on there is this service: what listens on a port of the loopback."""

        def pass_on(connection: Connection, hello: Hello) -> None:
            relay(socket.create_connection((LOOPBACK, port)), connection)

        self.serve(name, pass_on)

    def _take_newcomers(self) -> None:
        while not self._is_closed:
            try:
                own, address = self._listener.accept()
            except OSError as error:
                if error.errno in (errno.EINVAL, errno.EBADF):
                    return
                time.sleep(_PAUSE_S)
                continue
            self._newcomers.admit(own, str(address[0]))
            try:
                arguments = (own, str(address[0]))
                threading.Thread(target=self._welcome, args=arguments, daemon=True).start()
            except RuntimeError:
                self._newcomers.leave(own)
                own.close()
                time.sleep(_PAUSE_S)

    def _welcome(self, own: socket.socket, address: str) -> None:
        try:
            connection = Connection.called(own, self._own.secret)
            hello = json.loads(connection.receive_within(HANDSHAKE_S))
            service = self._services[hello["service"]]
        except WrongSecretError:
            own.close()
            self._remark(address, "does not know this run's secret; it was turned away")
            return
        except (OSError, ValueError, KeyError, TypeError):
            own.close()
            return
        finally:
            self._newcomers.leave(own)
        with self._lock:
            self._connections.add(connection)
        try:
            with contextlib.suppress(OSError):
                service(connection, hello)
        finally:
            with self._lock:
                self._connections.discard(connection)
            connection.close()
            connection.release()

    def _remark(self, address: str, text: str) -> None:
        """Once for each stranger, and for a few of them."""
        with self._lock:
            is_new = (address, text) not in self._strangers
            if not is_new or len(self._strangers) >= _MOST_REMARKS:
                return
            self._strangers.add((address, text))
        self._on_message(f"--rendezvous {self._own}: {address} {text}")


def _listen(own: Host0, on_message: Callable[[str], None]) -> socket.socket:
    """On the address that the others call; on all where it is not one of this host's.

    Raises:
        HeterpsError: The port is in use, or there is no such address.
    """
    try:
        kind, _, _, _, where = socket.getaddrinfo(own.address, own.port, type=socket.SOCK_STREAM)[0]
        try:
            return socket.create_server(where[:2], family=kind, backlog=_BACKLOG)
        except OSError as error:
            if error.errno != errno.EADDRNOTAVAIL:
                raise
        everywhere = "::" if kind == socket.AF_INET6 else ""
        listener = socket.create_server((everywhere, own.port), family=kind, backlog=_BACKLOG)
    except OSError as error:
        reason = "is in use" if error.errno == errno.EADDRINUSE else f"cannot be used: {error}"
        raise HeterpsError(f"--rendezvous {own}: {reason}") from None
    on_message(f"{own.address} is no address of this host: listening on all that it has")
    return listener
