"""A small model, as a profile file, and the command line in one call."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from heterps.cli.app import main
from tests.heterps.small_profiles import blocks_profile


@dataclass(frozen=True)
class Outcome:
    """What a command printed, and its exit code."""

    code: int
    out: str
    err: str

    @property
    def data(self) -> Any:
        """Its JSON answer."""
        return json.loads(self.out)


@pytest.fixture
def heterps(capsys: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Runs a command line in this process."""

    def run(*arguments: object) -> Outcome:
        with pytest.raises(SystemExit) as stop:
            main([str(argument) for argument in arguments])
        code = stop.value.code
        printed = capsys.readouterr()
        return Outcome(code if isinstance(code, int) else 0, printed.out, printed.err)

    return run


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """The profile file of eight equal layers."""
    path = tmp_path / "blocks.yaml"
    blocks_profile().to_file(path)
    return path
