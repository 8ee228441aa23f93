"""What torch's store thinks of processes that end is not for the terminal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# A client that goes in the midst of an answer, as devices do that are lost: it is cut off when a
# part has come through, of more than the buffers of sockets hold.
LOSING = """
import os, select, socket
{first}
from heterps_runtime.elastic.store import connect, serve

store = serve()
store.set("key", b"x" * 8_000_000)
gate = socket.create_server(("127.0.0.1", 0))
client = os.fork()
if client == 0:
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
    connect(gate.getsockname()[1]).get("key")
near, _ = gate.accept()
far = socket.socket()
far.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
far.connect(("127.0.0.1", store.port))
num_answered = 0
while num_answered < 100_000:
    for ready in select.select([near, far], [], [])[0]:
        data = ready.recv(65_536)
        (far if ready is near else near).sendall(data)
        num_answered += len(data) if ready is far else 0
os.kill(client, 9)
os.waitpid(client, 0)
far.close()
for turn in range(10):
    store.set(str(turn), b"")
print(os.environ.get("TORCH_CPP_LOG_LEVEL"))
"""
QUIETLY = "from heterps_runtime.process.quiet_torch import import_torch; import_torch()"


def said(first: str, level: str | None = None) -> tuple[str, str]:
    """What clients that are lost make a process print and warn of."""
    environment = {**os.environ, **({} if level is None else {"TORCH_CPP_LOG_LEVEL": level})}
    code = [sys.executable, "-c", LOSING.format(first=first)]
    done = subprocess.run(code, capture_output=True, text=True, check=True, env=environment)
    return done.stdout.strip(), done.stderr


@pytest.mark.slow
def test_lost_clients_of_a_store_are_nothing_for_the_terminal() -> None:
    assert said(QUIETLY) == ("None", "")


@pytest.mark.slow
def test_a_level_that_a_user_has_chosen_stays() -> None:
    printed, warned = said(QUIETLY, "WARNING")
    assert printed == "WARNING"
    assert "Write to client failed" in warned
