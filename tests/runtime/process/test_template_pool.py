"""Templates that wait for the next run, and when they do not."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import pytest

from heterps_runtime.process import template_pool
from heterps_runtime.process.template import Template
from heterps_runtime.process.template_pool import keeping_templates

WORD = {**os.environ, "WORD": "hello"}


def main(arguments: list[str]) -> int:
    """What a forked process does: it says whose copy it is, and what was imported."""
    if arguments == ["wait"]:
        time.sleep(60)
    print(os.getppid(), *(name in sys.modules for name in arguments), flush=True)
    return 0


@pytest.fixture(autouse=True)
def _empty_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_pool, "_pool", template_pool._Pool())


def said(
    folder: Path, environment: dict[str, str] = WORD, libraries: Sequence[str] = ()
) -> list[str]:
    with Template(__name__, environment, folder / "log", libraries) as template:
        process = template.fork(list(libraries), environment, folder / "log")
        assert process.wait(20) == 0
        return process.stdout.read().split()


def _is_alive(pid: str) -> bool:
    return Path(f"/proc/{pid}").exists()


def test_the_next_that_asks_for_the_same_gets_it_and_at_the_end_none_is_left(
    tmp_path: Path,
) -> None:
    with keeping_templates(left_out={"PYTEST_CURRENT_TEST"}):
        (first,) = said(tmp_path)
        (again,) = said(tmp_path, {**WORD, "PYTEST_CURRENT_TEST": "another"})
        other, is_imported = said(tmp_path, {**WORD, "WORD": "other"}, ["colorsys"])
        assert first == again != other
        assert is_imported == "True"
        assert _is_alive(first)
    assert not _is_alive(first)
    assert not _is_alive(other)


def test_a_library_comes_in_later(tmp_path: Path) -> None:
    with keeping_templates():
        (first,) = said(tmp_path)
        assert said(tmp_path, libraries=["colorsys"]) == [first, "True"]


def test_without_being_asked_for_none_waits(tmp_path: Path) -> None:
    (first,) = said(tmp_path)
    assert not _is_alive(first)


def test_what_failed_or_still_has_processes_never_waits(tmp_path: Path) -> None:
    with keeping_templates():
        with Template(__name__, WORD, tmp_path / "log") as template:
            process = template.fork(["wait"], WORD, tmp_path / "log")
        os.killpg(process.pid, signal.SIGKILL)
        assert not template.is_alive()
        with (
            pytest.raises(KeyError),
            Template(__name__, WORD, tmp_path / "log") as failed,
        ):
            raise KeyError
        assert not failed.is_alive()
