"""Processes that have imported torch wait for the next test's run, which begins seconds sooner."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType

import pytest

from heterps_runtime.process import template_pool
from heterps_runtime.process.template import Template

# What tests of templates themselves import.
_OWN = ("keeping_templates", "Template")


@pytest.fixture(scope="session", autouse=True)
def templates_wait() -> Iterator[None]:
    """All tests of a process share templates."""
    with template_pool.keeping_templates(left_out={"PYTEST_CURRENT_TEST"}):
        yield


@pytest.fixture(scope="module", autouse=True)
def own_templates(request: pytest.FixtureRequest, templates_wait: None) -> Iterator[None]:
    """Tests of templates get theirs alone."""
    module = request.module
    assert isinstance(module, ModuleType)
    with pytest.MonkeyPatch.context() as patch:
        if any(hasattr(module, name) for name in _OWN):
            patch.setattr(template_pool._pool, "left_out", None)
        yield


def waiting_processes() -> set[int]:
    """Numbers of the processes that wait for the next run."""
    templates = [template for _, template in template_pool._pool.waiting]
    return {
        template._process.pid
        for template in templates
        if isinstance(template, Template) and template._process is not None
    }
