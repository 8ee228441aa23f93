"""What torch's store thinks of processes that end is not for the terminal."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

# Clients that end while the store answers them, as devices do that are lost.
LOSING = """
import os, signal, time
{first}
from heterps_runtime.elastic.store import connect, serve

store, long = serve(), b"x" * 4_000_000
for turn in range(3):
    key, readers = str(turn), []
    for number in range(6):
        reader = os.fork()
        if reader == 0:
            own = connect(store.port)
            while True:
                own.get(key)
        readers.append(reader)
    store.set(key, long)
    time.sleep(0.1)
    for reader in readers:
        os.kill(reader, signal.SIGKILL)
    for reader in readers:
        os.waitpid(reader, 0)
    store.set(key, long)
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
