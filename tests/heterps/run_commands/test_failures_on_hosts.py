"""What a failed run on several hosts says: on all of them alike, and how to go on."""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.runtime.networks import Network, ends, free_port, network
from tests.runtime.processes import processes_of, ranks_of
from tests.runtime.runs_on_hosts import plan_file, start_run

LIMIT_S = 150.0
HINT = r"the same command on every host with --resume goes on from {}/step-\d+"
KILLED = r"rank 2 was ended by SIGKILL.*host-1/rank-2\.log"
Cause = Callable[[list[Any], Path], None]


@pytest.fixture(scope="module")
def hosts() -> Iterator[Network]:
    with network() as made:
        yield made


def _interrupt_host_1(processes: list[Any], run: Path) -> None:
    del run
    processes[1].send_signal(signal.SIGINT)


def _kill_host_0(processes: list[Any], run: Path) -> None:
    del run
    processes[0].kill()


def _kill_a_rank_of_host_1(processes: list[Any], run: Path) -> None:
    del processes
    *_, last = ranks_of(run / "host-1").values()
    os.kill(last, signal.SIGKILL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("cause", "codes", "said"),
    [
        (_interrupt_host_1, (2, 130), ("host 1 was interrupted; {}", "interrupted; {}")),
        (_kill_host_0, (-9, 2), ("", "host 0 .* has gone: its connection broke; {}")),
        (
            _kill_a_rank_of_host_1,
            (2, 2),
            (f"host 1: {KILLED}; {{}}", f"{KILLED}; {{}}"),
        ),
    ],
)
def test_every_host_is_told_the_same_way_to_go_on(
    hosts: Network, tmp_path: Path, cause: Cause, codes: tuple[int, int], said: tuple[str, str]
) -> None:
    plan, port, saved = plan_file(tmp_path), free_port(), tmp_path / "saved"
    (tmp_path / "settings.yaml").write_text("checkpoint: {every: 5, keep: 100000}\n")
    saving = ("--checkpoint", str(saved), "--settings", str(tmp_path / "settings.yaml"))
    options = ("--steps", "1000000", *saving)
    processes = [start_run(hosts, plan, rank, port, *options) for rank in (0, 1)]
    deadline_s = time.monotonic() + LIMIT_S
    while not list(saved.glob("step-*")) and time.monotonic() < deadline_s:
        time.sleep(0.1)
    has_saved = bool(list(saved.glob("step-*")))
    cause(processes, tmp_path / "run")
    ended = ends(processes)
    assert has_saved, f"no checkpoint in {LIMIT_S:.0f} s"
    for (code, _, errors), expected_code, text in zip(ended, codes, said, strict=True):
        assert code == expected_code, errors
        wanted = text.format(HINT.format(re.escape(str(saved))))
        assert re.search(wanted, errors, re.DOTALL), errors
        assert errors.count("with --resume goes on") == (1 if text else 0), errors
        assert "KeyboardInterrupt" not in errors
    assert processes_of(tmp_path) == []
