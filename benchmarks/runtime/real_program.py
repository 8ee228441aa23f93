"""The training programs of `real.py`; one of them writes down which samples were trained on.

The folder comes by the variable `SEEN`, the number of the attempt by `ATTEMPT`, since every rank
calls `make` in its own process.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from heterps_configs.documents.yaml_files import write_text
from heterps_runtime.examples import text_llama
from heterps_runtime.training.program import TrainingProgram

NUM_SAMPLES = 1_003


class Numbered:
    """Samples whose target is their own number."""

    def __len__(self) -> int:
        return NUM_SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        return torch.full((8,), index / NUM_SAMPLES), torch.tensor(float(index))


class Seen:
    """Remembers the targets of a step, and leaves them in a file when the step is done."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._numbers: list[int] = []

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Some loss; only last stages call it."""
        self._numbers += [int(number) for number in target.tolist()]
        return output.square().mean()

    def write(self, step: int, figures: Mapping[str, float]) -> None:
        """A step that is done once more, in a later attempt, counts instead of the earlier one."""
        name = f"{step}-{os.environ['ATTEMPT']}-{os.environ['RANK']}.json"
        write_text(self._folder / name, json.dumps(self._numbers))
        self._numbers = []


def make() -> TrainingProgram:
    """Data, loss and a callback."""
    seen = Seen(Path(os.environ["SEEN"]))
    return TrainingProgram(data=Numbered(), loss=seen.loss, callbacks=[seen.write])


def make_text() -> TrainingProgram:
    """The shipped one, without its evaluations."""
    return replace(text_llama.make(), evaluation_data=None, evaluate_every=0)
