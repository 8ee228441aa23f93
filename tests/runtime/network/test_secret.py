"""Where the secret of a run comes from, and what is no secret."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_configs.errors import HeterpsError
from heterps_runtime.network.dial import Host0
from heterps_runtime.network.secret import VARIABLE, read_secret
from heterps_runtime.run.launcher import worker_environment
from heterps_runtime.specification.hosts import Hosts

SECRET = "0123456789abcdef"


@pytest.fixture(autouse=True)
def _without_a_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(VARIABLE, raising=False)


def _file(folder: Path, content: str, mode: int = 0o600) -> Path:
    path = folder / "secret"
    path.write_text(content)
    path.chmod(mode)
    return path


def test_it_comes_from_a_file_or_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = _file(tmp_path, SECRET + "\n")
    assert read_secret(path) == SECRET.encode()
    monkeypatch.setenv(VARIABLE, "another secret of this run")
    assert read_secret(None) == b"another secret of this run"
    with pytest.warns(UserWarning, match=f"{VARIABLE} is ignored"):
        assert read_secret(path) == SECRET.encode()


def test_without_one_a_run_on_several_hosts_says_how_to_make_one() -> None:
    with pytest.raises(HeterpsError, match=r"needs a secret .*head -c 32.*--secret-file"):
        Hosts.parse(2, 0, "10.0.0.1:29400")


@pytest.mark.parametrize(
    ("content", "mode", "expected"),
    [
        ("short", 0o600, "5 bytes are too few"),
        (" " * 40, 0o600, "0 bytes are too few"),
        ("x" * 5000, 0o600, "is it another file"),
        (SECRET, 0o644, r"everybody on this host may read .* chmod 600"),
        (SECRET, 0o602, r"everybody on this host"),
    ],
)
def test_what_is_no_secret_is_refused(
    content: str, mode: int, expected: str, tmp_path: Path
) -> None:
    with pytest.raises(HeterpsError, match=expected) as error:
        read_secret(_file(tmp_path, content, mode))
    assert content.strip() not in str(error.value) or not content.strip()


def test_a_file_that_is_not_there_and_one_that_a_group_reads(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match="cannot be read: No such file"):
        read_secret(tmp_path / "none")
    with pytest.warns(UserWarning, match="its group"):
        read_secret(_file(tmp_path, SECRET, 0o640))


def test_it_is_shown_to_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(VARIABLE, SECRET)
    hosts = Hosts.parse(2, 1, "10.0.0.1:29400")
    assert hosts is not None
    assert SECRET not in repr(hosts) + repr(hosts.host_0) + str(hosts.host_0)
    assert hosts.host_0 == Host0("10.0.0.1", 29400, SECRET.encode())
    assert VARIABLE not in worker_environment(1), "the code of a model need not know it"
