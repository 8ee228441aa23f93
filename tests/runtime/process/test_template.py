"""Processes that are forked instead of started behave as started ones do."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from heterps_runtime.process.template import Passed, Template

WORD = {**os.environ, "WORD": "hello"}


def _echo(arguments: list[str]) -> int:
    if arguments == ["imported"]:
        arguments = [str("colorsys" in sys.modules)]
    print(os.environ["WORD"], *arguments, flush=True)
    if arguments == ["wait"]:
        time.sleep(60)
    return 7


def main(arguments: list[str]) -> int:
    """What the template that is started runs: this module is its argument."""
    return _echo(arguments)


@pytest.fixture(params=["started", "forked"])
def template(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Template]:
    if request.param == "started":
        made = Template("tests.runtime.process.test_template", os.environ, tmp_path / "log")
    else:
        made = Template.of_this_process(_echo)
    with made:
        yield made


@pytest.mark.slow
def test_it_prints_to_its_parent_and_tells_how_it_ended(template: Template, tmp_path: Path) -> None:
    process = template.fork(["a", "b"], WORD, tmp_path / "log")
    assert process.wait(10) == 7
    assert process.stdout.read() == "hello a b\n"


@pytest.mark.slow
def test_signals_reach_its_group(template: Template, tmp_path: Path) -> None:
    process = template.fork(["wait"], WORD, tmp_path / "log")
    assert process.stdout.readline() == "hello wait\n"
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    assert os.getpgid(process.pid) == process.pid
    os.killpg(process.pid, signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL


@pytest.mark.slow
def test_a_request_may_be_longer_than_a_message(template: Template, tmp_path: Path) -> None:
    process = template.fork(["x" * 300_000], WORD, tmp_path / "log")
    assert len(process.stdout.read()) == len("hello ") + 300_000 + 1


def test_it_imports_for_its_copies_what_can_be_imported(tmp_path: Path) -> None:
    libraries = ("no_such_library", "colorsys")
    with Template(
        "tests.runtime.process.test_template", WORD, tmp_path / "log", libraries
    ) as template:
        process = template.fork(["imported"], WORD, tmp_path / "log")
        assert process.stdout.read() == "hello True\n"
    assert (tmp_path / "log").read_text() == ""


def test_a_template_whose_answers_nobody_reads_ends_quietly(tmp_path: Path) -> None:
    with Template("tests.runtime.process.test_template", WORD, tmp_path / "log") as template:
        for _ in range(20):
            template.fork([], WORD, tmp_path / "log")
    assert not template.is_alive()
    assert (tmp_path / "log").read_text() == ""


def test_a_copy_of_this_process_destroys_nothing_of_it(tmp_path: Path) -> None:
    class Held:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            with (tmp_path / "destroyed").open("a") as file:
                file.write(f"{os.getpid()}\n")

    def collect(_: list[str]) -> int:
        gc.collect()
        return 0

    Held()
    with Template.of_this_process(collect) as template:
        assert template.fork([], os.environ, tmp_path / "log").wait(10) == 0
    assert (tmp_path / "destroyed").read_text() == f"{os.getpid()}\n"


@pytest.mark.slow
def test_a_descriptor_comes_with_its_number(template: Template, tmp_path: Path) -> None:
    read, write = os.pipe()
    process = template.fork([], WORD, tmp_path / "log", Passed(write, "WORD"))
    os.close(write)
    assert int(process.stdout.read()) > 2
    assert process.wait(10) == 7
    assert os.read(read, 1) == b"", "its end has closed the last copy"
    os.close(read)
