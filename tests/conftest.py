"""Settings for all tests, and the problems that several floors share."""

from __future__ import annotations

import gc
import signal
from collections.abc import Iterator

import pytest
from hypothesis import settings

import tests.one_thread  # noqa: F401 - before libraries are loaded
from tests.uneven_problems import MakeProblem, uneven_problem

# Compilation and busy machines make single examples slow; the same examples on every run.
settings.register_profile("heterps", deadline=None, derandomize=True)
settings.load_profile("heterps")

# Imports, traces and plans are many objects that live long or are freed without it: to look for
# cycles among them as often as Python does takes a fifth of the time of tests that trace.
gc.set_threshold(50_000, 20, 50)

# A shell starts background jobs with Ctrl-C ignored, and what they start inherits it: tests that
# interrupt a command would wait for ever.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_finish() -> None:
    """What was imported by then stays."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True, scope="session")
def logs_of_stable_baselines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """`learn` without a logger leaves a folder; it shall be where pytest removes it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SB3_LOGDIR", str(tmp_path_factory.mktemp("stable-baselines")))
        yield


@pytest.fixture
def make_problem() -> MakeProblem:
    """Builds problems of ten uneven layers on three classes of devices in two nodes."""
    return uneven_problem
