"""The gate of host 0: those of the run reach its loopback through it, strangers reach nothing."""

from __future__ import annotations

import secrets
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from datetime import timedelta

import pytest
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from heterps_runtime.network.connection import Connection
from heterps_runtime.network.dial import Host0, dial
from heterps_runtime.network.gate import Gate
from heterps_runtime.network.handshake import WrongSecretError
from heterps_runtime.network.newcomers import MOST
from heterps_runtime.network.tunnel import Tunnel
from tests.runtime.elastic.small_runs import wait_until
from tests.runtime.networks import free_port

SECRET = b"the secret of this run"


class Site:
    """Host 0 with a store on its loopback.

    Attributes:
        remarks: What the gate has said.
    """

    def __init__(self, stack: ExitStack) -> None:
        self.remarks: list[str] = []
        self.host_0 = Host0("127.0.0.1", free_port(), SECRET)
        listener = socket.create_server(("127.0.0.1", 0))
        self.port = listener.getsockname()[1]
        self.store = TCPStore(
            "127.0.0.1",
            self.port,
            is_master=True,
            wait_for_workers=False,
            master_listen_fd=listener.detach(),
        )
        self.gate = Gate(self.host_0, self.remarks.append)
        self.gate.forward("store", self.port)
        stack.enter_context(self.gate)

    def client(self, port: int) -> TCPStore:
        """A store that is reached by a port of the loopback."""
        return TCPStore("127.0.0.1", port, is_master=False, timeout=timedelta(seconds=10))


@pytest.fixture
def site() -> Iterator[Site]:
    with ExitStack() as stack:
        yield Site(stack)


def _stranger(site: Site) -> socket.socket:
    return socket.create_connection((site.host_0.address, site.host_0.port), timeout=5)


def test_a_store_is_reached_through_a_tunnel_by_many(site: Site) -> None:
    with Tunnel(site.host_0, "store") as tunnel:
        clients = [site.client(tunnel.port) for _ in range(8)]
        for number, client in enumerate(clients):
            client.set(f"key-{number}", "x" * 300_000)
        assert site.store.get("key-7") == b"x" * 300_000
        waiting = threading.Thread(target=lambda: site.store.set("late", "came"))
        waiting.start()
        clients[0].wait(["late"], timedelta(seconds=5))
        waiting.join()
    assert site.remarks == []


def test_the_end_of_either_side_ends_the_other(site: Site) -> None:
    with Tunnel(site.host_0, "store") as tunnel:
        client = site.client(tunnel.port)
        site.gate.__exit__()
        began_s = time.monotonic()
        with pytest.raises(RuntimeError):
            client.get("a key")
        assert time.monotonic() - began_s < 2


def test_a_wrong_secret_reaches_nothing_and_is_spoken_of_once(site: Site) -> None:
    wrong = site.host_0._replace(secret=b"a guess of a stranger")
    for _ in range(3):
        with pytest.raises(WrongSecretError):
            dial(wrong, {"service": "store"})
    wait_until(lambda: bool(site.remarks), 5)
    assert len(site.remarks) == 1
    assert "127.0.0.1 does not know this run's secret" in site.remarks[0]


def test_a_service_that_there_is_not_and_a_hello_that_is_none_are_turned_away(site: Site) -> None:
    for hello in ({"service": "shell"}, {"service": ["store"]}, {}):
        connection = dial(site.host_0, hello)
        with pytest.raises(ConnectionError):
            connection.receive()
        connection.release()
    connection = Connection.calling(_stranger(site), SECRET)
    connection.send(b"\x80 no JSON")
    with pytest.raises(ConnectionError):
        connection.receive()
    connection.release()


@pytest.mark.slow
def test_garbage_and_a_thousand_open_connections_keep_nobody_out(site: Site) -> None:
    with Tunnel(site.host_0, "store") as tunnel, ExitStack() as stack:
        before = site.client(tunnel.port)
        for number in range(1000):
            own = stack.enter_context(_stranger(site))
            if number % 2:
                own.sendall(secrets.token_bytes(number))
        began_s = time.monotonic()
        before.set("before", "1")
        site.client(tunnel.port).set("after", "2")
        assert time.monotonic() - began_s < 5
        assert (site.store.get("before"), site.store.get("after")) == (b"1", b"2")
        assert len(site.gate._newcomers) <= MOST
    assert len(site.remarks) <= 1
