"""A small model, as a profile file, plans of small models, and the command line in one call."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from heterps.cli.app import main
from tests.heterps.small_profiles import blocks_profile
from tests.kept_templates import own_templates, templates_wait
from tests.short_proofs import short_proofs

__all__ = ["own_templates", "short_proofs", "templates_wait"]


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


@pytest.fixture(scope="session")
def blocks_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The plan of eight equal layers on four emulated devices; nobody changes it."""
    folder = tmp_path_factory.mktemp("blocks")
    blocks_profile().to_file(folder / "blocks.yaml")
    return _placed(folder, str(folder / "blocks.yaml"))


@pytest.fixture(scope="session")
def perceptron_plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of the shipped perceptron."""
    return _placed(tmp_path_factory.mktemp("perceptron"), "perceptron")


def _placed(folder: Path, model: str) -> Path:
    path = folder / "plan.yaml"
    asked = "-c", "local-emulated", "-p", "exact", "--shard-state", "never"
    with pytest.raises(SystemExit) as stop:
        main(["place", model, *asked, "-o", str(path)])
    assert not stop.value.code
    return path
