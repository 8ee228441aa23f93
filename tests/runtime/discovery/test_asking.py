"""The script on this machine, and over a `ssh` that runs it here: the way of real hosts."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from heterps_configs.errors import HeterpsError
from heterps_runtime.discovery.asking import MOST_BYTES, ask, probe_script
from heterps_runtime.discovery.discover import discover
from heterps_runtime.discovery.sections import sections_of

Ssh = Callable[[str], Path]
# The host is the first word after the options; what follows is the command.
RUNS_HERE = """
while [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done
host=$1; shift
echo "$host $*" >> "$(dirname "$0")/asked"
"""


@pytest.fixture
def ssh(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ssh:
    """Puts a `ssh` with some behaviour in front of the real one."""

    def install(behaviour: str) -> Path:
        folder = tmp_path / "bin"
        folder.mkdir()
        (folder / "ssh").write_text(f"#!/bin/sh\n{RUNS_HERE}\n{behaviour}\n")
        (folder / "ssh").chmod(0o755)
        monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
        return folder / "asked"

    return install


def test_hosts_run_the_script_that_this_machine_runs(ssh: Ssh) -> None:
    asked = ssh('exec "$@"')
    found = discover(["one", "user@two", "localhost"], "three")
    assert sorted(asked.read_text().splitlines()) == ["one sh -s", "user@two sh -s"]
    assert [node.name for node in found.cluster.nodes] == ["one", "user@two", "localhost"]
    assert found.hosts[0].processors == discover().hosts[0].processors


def test_hosts_are_asked_at_once(ssh: Ssh) -> None:
    ssh('sleep 1; exec "$@"')
    started = time.monotonic()
    ask([f"host-{index}" for index in range(8)])
    assert time.monotonic() - started < 6, "eight seconds one after the other"


def test_a_host_that_cannot_be_reached_is_one_line(ssh: Ssh) -> None:
    ssh('echo "banner" >&2; echo "ssh: $host: No route to host" >&2; exit 255')
    with pytest.raises(HeterpsError) as error:
        ask(["far"])
    assert str(error.value) == "far: ssh: far: No route to host"


def test_all_failures_are_told_at_once(ssh: Ssh) -> None:
    ssh('case $host in good) exec "$@" ;; silent) exit 3 ;; *) echo "denied" >&2; exit 255 ;; esac')
    with pytest.raises(HeterpsError) as error:
        ask(["good", "bad", "silent"])
    assert str(error.value) == (
        "2 of 3 hosts did not answer: bad: denied; silent: ssh ended with code 3"
    )


def test_a_host_that_hangs_is_given_up_with_all_that_it_started(ssh: Ssh) -> None:
    asked = ssh('sleep 300 & echo $! >> "$(dirname "$0")/asked"; wait')
    started = time.monotonic()
    with pytest.raises(HeterpsError, match="stuck: no answer within 1 s"):
        ask(["stuck"], time_limit_s=1)
    assert time.monotonic() - started < 10
    process = asked.read_text().splitlines()[-1]
    state = subprocess.run(
        ["ps", "-o", "stat=", "-p", process], capture_output=True, text=True, check=False
    ).stdout.strip()
    assert state == "" or state.startswith("Z")


def test_a_host_that_never_ends_its_answer_is_cut_off(ssh: Ssh) -> None:
    ssh("yes")
    with pytest.raises(HeterpsError, match=f"more than {MOST_BYTES // 1024} KiB"):
        ask(["endless"])


@pytest.mark.slow
def test_complaints_without_end_hold_up_nothing(ssh: Ssh) -> None:
    ssh("yes >&2")
    with pytest.raises(HeterpsError, match="loud: "):
        ask(["loud"], time_limit_s=1)


def test_an_answer_of_another_shell_is_refused(ssh: Ssh) -> None:
    ssh('echo "Your account is locked."')
    with pytest.raises(HeterpsError, match="odd: what it answered has no end"):
        discover(["odd"])


def test_without_ssh_that_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HeterpsError, match="ssh cannot be started: No such file"):
        ask(["any"])


@pytest.mark.parametrize("locale", ["C", "de_DE.UTF-8", "tr_TR.UTF-8", "no-such-locale"])
def test_the_language_of_a_host_changes_nothing(
    locale: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    usual = discover().text
    for name in ("LC_ALL", "LANG", "LANGUAGE"):
        monkeypatch.setenv(name, locale)
    assert discover().text == usual


def test_tools_of_a_host_are_asked_and_may_refuse_words(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A `nvidia-smi` of an old driver: the whole question fails, the short one does not."""
    tool = tmp_path / "nvidia-smi"
    tool.write_text(
        "#!/bin/sh\ncase $* in\n"
        "*mig.mode*) echo 'Field \"mig.mode.current\" is not a valid field to query.'; exit 2 ;;\n"
        "--query-gpu*) echo '0, Tesla T4, 15109'; echo '1, Tesla T4, 15109' ;;\n"
        "*) echo 'Invalid option'; exit 1 ;;\nesac\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    found = discover()
    assert [device.type.name for device in found.cluster.devices] == ["T4", "T4"]
    assert any("assumed" in text for text in found.draft.remarks), "of the lanes of PCIe"


def test_the_script_is_of_any_posix_shell_and_writes_nothing(tmp_path: Path) -> None:
    done = subprocess.run(
        ["sh", "-eu", "-n"], input=probe_script(), capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    subprocess.run(
        ["sh", "-s"], input=probe_script(), capture_output=True, text=True, check=True, cwd=tmp_path
    )
    assert list(tmp_path.iterdir()) == []


def test_this_machine_answers_all_that_linux_has() -> None:
    (answer,) = ask(["localhost"])
    sections = sections_of(answer.text, "localhost")
    assert {"host", "memory", "processors", "affinity", "limits", "interfaces"} <= set(sections)
    assert sections["affinity"].split(":")[1].strip()
