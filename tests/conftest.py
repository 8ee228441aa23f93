"""Settings for all tests, and the problems that several floors share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from heterps_runtime.process.template_pool import keeping_templates
from tests.uneven_problems import MakeProblem, uneven_problem

# Compilation and busy machines make single examples slow; the same examples on every run.
settings.register_profile("heterps", deadline=None, derandomize=True)
settings.load_profile("heterps")


@pytest.fixture
def make_problem() -> MakeProblem:
    """Builds problems of ten uneven layers on three classes of devices in two nodes."""
    return uneven_problem


@pytest.fixture(scope="session", autouse=True)
def _templates_of_tests() -> Iterator[None]:
    """Runs of tests that ask for the same libraries are forked from the same process."""
    with keeping_templates(left_out={"PYTEST_CURRENT_TEST"}):
        yield
