"""The launcher: commands, ports, and what it makes of failed workers."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from heterps_configs.errors import HeterpsError
from heterps_runtime.process.template import Template
from heterps_runtime.run.launcher import LAUNCHER_VARIABLE, Workers, worker_environment
from heterps_runtime.run.rank_errors import LOG_FILE, RankError
from heterps_runtime.run.worker import report_error
from heterps_runtime.run.world import World
from heterps_runtime.transport.lost_ranks import LostRankError

HERE = "tests.runtime.run.programs"


def _run(directory: Path, program: str, timeout_s: float | None = 60) -> list[dict[str, Any]]:
    """What two ranks print that carry out a program."""
    lines: list[dict[str, Any]] = []
    environment = worker_environment(1)
    world = World.of_this_host(2)
    with (
        Template(HERE, environment, directory / LOG_FILE) as template,
        Workers(template, directory, [program], environment, world) as workers,
    ):
        workers.wait(lines.append, lambda: None, timeout_s)
    return lines


def test_json_lines_reach_the_parent_and_other_lines_do_not(tmp_path: Path) -> None:
    program = "rank == 0 and (print('hello'), print('{\"step\": 1}'))"
    assert _run(tmp_path, program) == [{"step": 1}]


def test_ranks_know_their_launcher_its_modules_and_one_another(tmp_path: Path) -> None:
    program = (
        "import json, os, sys; print(json.dumps({'environment': dict(os.environ), "
        "'path': sys.path, 'pid': os.getpid()}))"
    )
    found = _run(tmp_path, program)
    assert len({line["pid"] for line in found} | {os.getpid()}) == 3
    for line in found:
        assert line["environment"][LAUNCHER_VARIABLE] == str(os.getpid())
        assert {path for path in sys.path if path} <= set(line["path"])
        assert line["environment"]["WORLD_SIZE"] == "2"
    assert {line["environment"]["RANK"] for line in found} == {"0", "1"}
    ports = {line["environment"]["MASTER_PORT"] for line in found}
    assert len(ports) == 1


@pytest.mark.slow
def test_ranks_meet_where_nobody_else_can_reach_them(tmp_path: Path) -> None:
    program = (
        "import json, os\n"
        "from pathlib import Path\n"
        "from heterps_runtime.transport.communication import Communicator\n"
        "communicator = Communicator()\n"
        "sockets = [line.split() for name in ('tcp', 'tcp6')"
        " for line in Path(f'/proc/self/net/{name}').read_text().splitlines()[1:]]\n"
        "paths = [os.path.realpath(path) for path in Path('/proc/self/fd').iterdir()]\n"
        "own = {os.path.basename(path) for path in paths}\n"
        "heard = [row[1] for row in sockets if row[3] == '0A' and f'socket:[{row[9]}]' in own]\n"
        "print(json.dumps({'sum': sum(communicator.gather(rank + 1, int)), 'heard': heard}))\n"
        "communicator.close()\n"
    )
    found = _run(tmp_path, program)
    assert [line["sum"] for line in found] == [3, 3]
    heard = {address.partition(":")[0] for line in found for address in line["heard"]}
    assert heard == {"0100007F"}, "127.0.0.1, as /proc/net/tcp writes it"


def test_first_rank_that_failed_by_itself_is_reported(tmp_path: Path) -> None:
    report_error(tmp_path, "0", "a", LostRankError("Connection closed by peer [127.0.0.1]"))
    report_error(tmp_path, "1", "b", HeterpsError("the factory returns no module"))
    report_error(tmp_path, "2", "c", ValueError("later"))
    with pytest.raises(RankError, match=r"^rank 1 \(b\): the factory returns no module$") as found:
        _run(tmp_path, "raise SystemExit(1)")
    assert found.value.rank == "1"


def test_error_file_holds_one_line_and_the_traceback(tmp_path: Path) -> None:
    try:
        raise KeyError("first\nsecond")
    except KeyError as error:
        report_error(tmp_path, "3", "d", error)
    content = json.loads((tmp_path / "error-3.json").read_text())
    assert "\n" not in content["message"]
    assert content["message"].startswith("KeyError: ")
    assert "Traceback" in content["traceback"]


def test_a_killed_rank_is_named_and_the_others_end(tmp_path: Path) -> None:
    program = (
        "import os, pathlib, time\n"
        f"pathlib.Path({str(tmp_path)!r}, f'pid-{{rank}}').write_text(str(os.getpid()))\n"
        "time.sleep(600) if rank == 0 else os.kill(os.getpid(), 9)\n"
    )
    killed = r"^rank 1 was ended by SIGKILL; the workers left no log$"
    with pytest.raises(RankError, match=killed) as found:
        _run(tmp_path, program)
    assert found.value.rank == "1"
    with pytest.raises(ProcessLookupError):
        os.kill(int((tmp_path / "pid-0").read_text()), 0)


def test_failure_without_a_trace_names_the_log(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match=r"ended with code 3; the workers left no log$"):
        _run(tmp_path, "raise SystemExit(3)")


def test_an_error_outside_of_a_worker_is_in_the_log(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match=r"ended with code 1; the workers' log ends with:\n"):
        _run(tmp_path, "raise KeyError('lost')")
    assert "KeyError: 'lost'" in (tmp_path / LOG_FILE).read_text()


def test_a_module_that_cannot_be_imported_ends_the_start(tmp_path: Path) -> None:
    environment, log = worker_environment(1), tmp_path / LOG_FILE
    with (
        Template("tests.runtime.no_such_module", environment, log) as template,
        pytest.raises(HeterpsError, match="the process that starts others has ended"),
    ):
        template.fork([], environment, log)
    assert "No module named 'tests.runtime.no_such_module'" in log.read_text()


def test_run_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match=r"was ended after 0\.5 s"):
        _run(tmp_path, "import time; time.sleep(600)", timeout_s=0.5)


def test_a_port_that_is_none_or_in_use_is_refused() -> None:
    with pytest.raises(HeterpsError, match="port 70000 is not a port"):
        World.of_this_host(2, port=70000)
    taken = World.of_this_host(2)
    assert taken.listener is not None
    taken.listener.listen()
    with pytest.raises(HeterpsError, match=f"port {taken.port} is in use"):
        World.of_this_host(2, port=taken.port)
    taken.close()
