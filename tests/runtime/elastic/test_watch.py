"""What the watch does to a training thread whose generation is given up."""

from __future__ import annotations

import subprocess
import sys

import pytest

from heterps_runtime.elastic.watch import STUCK

PROGRAM = """
import threading, time
from heterps_runtime.elastic.store import Notice, allow_beats, publish, serve
from heterps_runtime.elastic.watch import Watch

def waits_for_ever():
    time.sleep(600)

store = serve()
allow_beats(store, ["d0"])
watch = Watch(store.port, "d0", lambda: "0 training", leave_s=0.5)
watch.enter(0, connect_s=0.1)
publish(store, Notice(number=0))
publish(store, Notice(number=1, broken_below=1))
end_s = time.monotonic() + 1.2
while time.monotonic() < end_s:
    sum(range(10_000))
watch.leave()
print("computed to the end", flush=True)
watch.enter(1, connect_s=0.1)
publish(store, Notice(number=2, broken_below=2))
waits_for_ever()
"""


@pytest.mark.slow
@pytest.mark.alone
def test_a_thread_that_computes_is_left_alone_and_one_that_hangs_ends_with_its_stack() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == STUCK, ended.stderr
    assert "computed to the end" in ended.stdout
    assert "in waits_for_ever" in ended.stderr
