"""Runs whose results alone are looked at begin sooner."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from heterps_runtime.process.template_pool import keeping_templates

# Tests elsewhere look for the processes of a run, which the system lists under the first run's log.
FOLDERS = {"execution", "models", "stages", "state", "tensor_parallel"}


@pytest.fixture(scope="module", autouse=True)
def _runs_are_forked_from_one_process(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.path.parent.name not in FOLDERS:
        yield
        return
    with keeping_templates(left_out={"PYTEST_CURRENT_TEST"}):
        yield
