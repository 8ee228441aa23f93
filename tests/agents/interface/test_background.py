"""A process that is asked in the background: nobody waits for ever for what does not come."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from heterps_agents.interface.background import BackgroundWorker

# Answers with what it was asked, as text.
WORKER = """
from heterps_agents.interface.background import serve
serve(lambda request: [str(request)])
"""
LONGEST_S = 60.0


class Unknown:
    """Of a module that the process does not find."""


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Name of the module that the process runs."""
    (tmp_path / "answering.py").write_text(WORKER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", ":".join(path for path in sys.path if path))
    return "answering"


@pytest.mark.slow
def test_a_request_is_answered(worker: str) -> None:
    answers, came = list[str](), threading.Event()

    def take(answer: str) -> None:
        answers.append(answer)
        came.set()

    process = BackgroundWorker(worker, take)
    process.ask(lambda: 3)
    assert came.wait(LONGEST_S)
    assert answers == ["3"]
    assert process.end()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("request_of", [lambda: 1 / 0, lambda: int("no number")])
def test_a_request_that_cannot_be_made_ends_the_process(
    worker: str, request_of: Callable[[], object]
) -> None:
    process = BackgroundWorker(worker, lambda answer: None)
    process.ask(request_of)
    assert process.wait(LONGEST_S)
    process.end()


@pytest.mark.slow
def test_so_does_one_that_it_does_not_know(worker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unknown, "__module__", "answered_nowhere")
    module = type(sys)("answered_nowhere")
    setattr(module, "Unknown", Unknown)  # noqa: B010 (mypy: a module has no such name)
    monkeypatch.setitem(sys.modules, "answered_nowhere", module)
    process = BackgroundWorker(worker, lambda answer: None)
    process.ask(Unknown)
    assert process.wait(LONGEST_S)
    process.end()
