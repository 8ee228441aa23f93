"""A small model, as a profile file, and the command line in one call."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from heterps.cli import main
from heterps_configs.model_profile import LayerProfile, Measurement, ModelProfile


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


def blocks_profile(num_layers: int = 8) -> ModelProfile:
    """Equal layers of 40 ms on the host."""
    layers = tuple(
        LayerProfile(
            name=f"block{index}",
            kind="Block",
            num_parameters=1000,
            forward_flops=1e9,
            backward_flops=2e9,
            activation_bytes=4000,
            output_bytes=400,
        )
        for index in range(num_layers)
    )
    host = Measurement(
        device_type="host-cpu",
        micro_batch_size=1,
        forward_s=(0.01,) * num_layers,
        backward_s=(0.03,) * num_layers,
        optimizer_s=(0.001,) * num_layers,
    )
    return ModelProfile(name="blocks", dtype="float32", layers=layers, measurements=(host,))


@pytest.fixture
def blocks(tmp_path: Path) -> Path:
    """The profile file of eight equal layers."""
    path = tmp_path / "blocks.yaml"
    blocks_profile().to_file(path)
    return path
