"""Passing on what comes: between a socket of this host and a connection to another host."""

from __future__ import annotations

import contextlib
import socket
import threading

from heterps_runtime.network.connection import Connection
from heterps_runtime.network.frames import MAX_PAYLOAD_BYTES

LOOPBACK = "127.0.0.1"


def relay(plain: socket.socket, connection: Connection) -> None:
    """Passes on bytes in both directions, until one side ends; both are closed then.

    Args:
        plain: Of this host; has no time limit.
        connection: To another host.
    """
    plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    back = threading.Thread(target=_from_afar, args=(plain, connection), daemon=True)
    back.start()
    with contextlib.suppress(OSError):
        while data := plain.recv(MAX_PAYLOAD_BYTES):
            connection.send(data)
    connection.close()
    back.join()
    plain.close()
    connection.release()


def _from_afar(plain: socket.socket, connection: Connection) -> None:
    with contextlib.suppress(OSError):
        while data := connection.receive():
            plain.sendall(data)
    with contextlib.suppress(OSError):
        plain.shutdown(socket.SHUT_RDWR)
