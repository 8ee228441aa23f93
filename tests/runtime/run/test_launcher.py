"""The launcher: commands, ports, and what it makes of failed workers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from heterps_configs.errors import HeterpsError
from heterps_runtime.run.launcher import LAUNCHER_VARIABLE, Workers, torchrun_command
from heterps_runtime.run.worker import is_lost_connection, report_error

KILLED = """E ... Root Cause (first observed failure):
[0]:
  rank      : 2 (local_rank: 2)
  exitcode  : -9 (pid: 17)
"""


def _run(directory: Path, program: str, timeout_s: float | None = 60) -> list[dict[str, Any]]:
    lines: list[dict[str, Any]] = []
    with Workers([sys.executable, "-c", program], directory) as workers:
        workers.wait(lines.append, lambda: None, timeout_s)
    return lines


def test_json_lines_reach_the_parent_and_other_lines_do_not(tmp_path: Path) -> None:
    assert _run(tmp_path, "print('hello'); print('{\"step\": 1}')") == [{"step": 1}]


def test_workers_know_their_launcher_and_its_modules(tmp_path: Path) -> None:
    program = (
        f"import json, os, sys; print(json.dumps({{'pid': os.environ['{LAUNCHER_VARIABLE}'], "
        "'path': sys.path}))"
    )
    (line,) = _run(tmp_path, program)
    assert line["pid"] == str(os.getpid())
    assert {path for path in sys.path if path} <= set(line["path"])


def test_first_rank_that_failed_by_itself_is_reported(tmp_path: Path) -> None:
    report_error(tmp_path, "0", "a", RuntimeError("Connection closed by peer [127.0.0.1]"))
    report_error(tmp_path, "1", "b", HeterpsError("the factory returns no module"))
    report_error(tmp_path, "2", "c", ValueError("later"))
    with pytest.raises(HeterpsError, match=r"^rank 1 \(b\): the factory returns no module$"):
        _run(tmp_path, "raise SystemExit(1)")


def test_error_file_holds_one_line_and_the_traceback(tmp_path: Path) -> None:
    try:
        raise KeyError("first\nsecond")
    except KeyError as error:
        report_error(tmp_path, "3", "d", error)
    content = json.loads((tmp_path / "error-3.json").read_text())
    assert "\n" not in content["message"]
    assert content["message"].startswith("KeyError: ")
    assert "Traceback" in content["traceback"]


def test_killed_rank_is_found_in_the_log_of_torchrun(tmp_path: Path) -> None:
    program = f"import sys; sys.stderr.write({KILLED!r}); raise SystemExit(1)"
    with pytest.raises(
        HeterpsError, match=r"^rank 2 was ended by SIGKILL; the workers' log ends with:\n"
    ):
        _run(tmp_path, program)


def test_failure_without_a_trace_names_the_log(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match=r"ended with code 3; they left no log$"):
        _run(tmp_path, "raise SystemExit(3)")


def test_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match=r"was ended after 0\.5 s"):
        _run(tmp_path, "import time; time.sleep(600)", timeout_s=0.5)


def test_lost_connections_are_consequences() -> None:
    assert is_lost_connection(RuntimeError("[gloo] Connection closed by peer"))
    assert not is_lost_connection(ValueError("Connection closed by peer"))
    assert not is_lost_connection(RuntimeError("mat1 and mat2 shapes cannot be multiplied"))


def test_port_outside_the_range_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match="port 70000 is not a port"):
        torchrun_command(tmp_path, 2, port=70000)
