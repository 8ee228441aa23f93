"""What somebody without the secret tries at the gate of a run; prints what came of it as JSON.

It waits for the gate, and holds its connections until they break.

python -m tests.runtime.network.stranger ADDRESS PORT
"""

from __future__ import annotations

import json
import secrets
import socket
import sys
import time
from contextlib import ExitStack, suppress
from datetime import timedelta

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from heterps_runtime.network.dial import Host0, dial

NUM_CONNECTIONS = 1000


def wait_for_gate(address: str, port: int) -> None:
    """Returns when something listens there."""
    for _ in range(600):
        try:
            socket.create_connection((address, port), timeout=1).close()
            return
        except OSError:
            time.sleep(0.1)


def crowd(stack: ExitStack, address: str, port: int) -> list[socket.socket]:
    """A thousand connections that stay open, half of them with garbage."""
    opened = []
    for number in range(NUM_CONNECTIONS):
        opened.append(stack.enter_context(socket.create_connection((address, port), timeout=10)))
        if number % 2:
            with suppress(OSError):  # it was closed already
                opened[-1].sendall(secrets.token_bytes(number))
    return opened


def store(address: str, port: int) -> str:
    """What a client of a key-value store gets."""
    try:
        client = TCPStore(address, port, is_master=False, timeout=timedelta(seconds=3))
        client.set("a key", "of a stranger")
        return f"read {client.get('a key')!r}"
    except RuntimeError as error:
        return type(error).__name__


def guess(address: str, port: int, service: str) -> str:
    """What a wrong secret gets."""
    try:
        dial(Host0(address, port, b"a guess of a stranger"), {"service": service, "host": 1})
    except OSError as error:
        return type(error).__name__
    return "let in"


if __name__ == "__main__":
    where = sys.argv[1], int(sys.argv[2])
    wait_for_gate(*where)
    with ExitStack() as stack:
        opened = crowd(stack, *where)
        found = {
            "guesses": [guess(*where, service) for service in ("board", "ranks")],
            "store": store(*where),
            "connections": len(opened),
        }
        print(json.dumps(found), flush=True)
        for own in opened:
            with suppress(OSError):
                own.settimeout(60)
                while own.recv(1000):
                    pass
