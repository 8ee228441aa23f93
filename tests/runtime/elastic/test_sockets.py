"""Connections are cut from another thread, and nothing else is."""

from __future__ import annotations

import socket
import threading
from pathlib import Path

import pytest

from heterps_runtime.elastic.sockets import Connections

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/fd").is_dir(), reason="sockets are found in /proc"
)


def _pair(listener: socket.socket) -> tuple[socket.socket, socket.socket]:
    own = socket.create_connection(listener.getsockname(), timeout=10)
    other, _ = listener.accept()
    other.settimeout(10)
    return own, other


def test_who_waits_for_a_later_connection_wakes_and_earlier_ones_stay() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        earlier, earlier_end = _pair(listener)
        connections = Connections()
        later, later_end = _pair(listener)
        received: list[bytes] = []
        waiting = threading.Thread(target=lambda: received.append(later.recv(1)))
        waiting.start()
        connections.cut()
        waiting.join(10)
        assert received == [b""]
        assert later_end.recv(1) == b""
        earlier.sendall(b"x")
        assert earlier_end.recv(1) == b"x"
        for end in (earlier, earlier_end, later, later_end):
            end.close()


def test_a_socket_that_listens_is_left_alone() -> None:
    connections = Connections()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        connections.cut()
        own, other = _pair(listener)
        own.sendall(b"x")
        assert other.recv(1) == b"x"
        own.close()
        other.close()


def test_cutting_nothing_and_cutting_twice_does_no_harm() -> None:
    connections = Connections()
    connections.cut()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        own, other = _pair(listener)
        connections.cut()
        connections.cut()
        assert other.recv(1) == b""
        own.close()
        other.close()
