"""The end of every command: what went wrong is one line."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest


@pytest.mark.parametrize(
    "command",
    [
        ("simulate", "a" * 5000),
        ("report", "a" * 5000, "-o", "page.html"),
        ("place", "a" * 5000, "-c", "gpu-cpu"),
        ("place", "gpt2", "-c", "a" * 5000),
    ],
)
def test_what_is_too_long_for_a_file_is_said_to_be(
    heterps: Callable[..., Any], command: tuple[str, ...]
) -> None:
    outcome = heterps(*command)
    assert outcome.code == 2
    assert "is too long for the name of a file" in outcome.err
    assert len(outcome.err) < 500


@pytest.mark.parametrize(
    "command",
    [
        ("place", "gpt2", "-c", "a100-v100", "-o", f"{'a' * 5000}"),
        ("place", "gpt2", "-c", "a100-v100", "-p", "a" * 5000),
        ("place", "gpt2", "-c", "a100-v100", "--tensor-parallel", "a" * 5000),
        ("place", f"{'a' * 5000}:make", "-c", "a100-v100"),
        ("score", f"{'a' * 200}/" * 25),
    ],
)
def test_a_name_that_is_too_long_for_a_line_is_shortened(
    heterps: Callable[..., Any], command: tuple[str, ...]
) -> None:
    outcome = heterps(*command)
    assert outcome.code == 2
    assert " ... " in outcome.err
    assert len(outcome.err) < 1000
