"""Click-through rates from a log: a training program for the shipped model `ctr-tiny`.

    python -m heterps_runtime.examples.click_log clicks.csv
    heterps place ctr-tiny -c local-emulated --global-batch 64 -o plan.yaml
    heterps run plan.yaml --steps 200 --program heterps_runtime.examples.click_log:make

The variable `CLICKS` names another file. The log is generated, since real ones are of people: 26
features, 13 numbers, and whether somebody clicked, which depends on one of the features and two of
the numbers.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from heterps_configs.errors import HeterpsError
from heterps_runtime.examples.command_line import ExampleParser, errors_in_one_line
from heterps_runtime.examples.ctr import NUM_DENSE, NUM_TABLES
from heterps_runtime.training.program import TrainingProgram

# As the shipped profile `ctr-tiny` has them.
ROWS = 1_000
NUM_CLICKS = 20_000
HELD_OUT = 1_000
WIDTH = 1 + NUM_TABLES + NUM_DENSE


class Clicks:
    """Some lines of a log."""

    def __init__(self, lines: np.ndarray[tuple[int, int], np.dtype[np.float32]]) -> None:
        self._lines = torch.from_numpy(lines)

    def __len__(self) -> int:
        return len(self._lines)

    def __getitem__(self, index: int) -> tuple[tuple[Tensor, Tensor], Tensor]:
        line = self._lines[index]
        return (line[:NUM_TABLES].long(), line[NUM_TABLES:-1]), line[-1:]


def generate(path: str) -> None:
    """Writes a log."""
    draw = np.random.default_rng(0)
    sparse = np.floor(ROWS * draw.random((NUM_CLICKS, NUM_TABLES)) ** 3)
    dense = draw.standard_normal((NUM_CLICKS, NUM_DENSE)).round(3)
    likes = 2.0 * dense[:, 0] - dense[:, 1] + np.where(sparse[:, 0] < 50, 1.0, -1.0)
    clicked = draw.random(NUM_CLICKS) < 1 / (1 + np.exp(-likes))
    lines = np.column_stack([sparse, dense, clicked])
    np.savetxt(path, lines, delimiter=",", fmt="%g")


def accuracy(output: Tensor, target: Tensor) -> Tensor:
    """Share of visitors of whom it is known whether they click."""
    return ((output > 0) == (target > 0.5)).float().mean()


def read(path: Path) -> np.ndarray[tuple[int, int], np.dtype[np.float32]]:
    """The lines of a log: the features, the numbers, whether somebody clicked.

    Raises:
        HeterpsError: It has other lines, or too few.
    """
    try:
        lines = np.loadtxt(path, delimiter=",", dtype=np.float32, ndmin=2)
    except ValueError as error:
        raise HeterpsError(f"CLICKS: {path}: {error}") from None
    count, width = lines.shape
    if width != WIDTH or count <= HELD_OUT:
        raise HeterpsError(
            f"CLICKS: {path} has {count} lines of {width} numbers; more than {HELD_OUT} lines of "
            f"{WIDTH} are needed"
        )
    features = lines[:, :NUM_TABLES]
    if features.min() < 0 or features.max() >= ROWS:
        raise HeterpsError(
            f"CLICKS: {path}: features, the first {NUM_TABLES} numbers, must be 0 to {ROWS - 1}"
        )
    return lines


def make() -> TrainingProgram:
    """The loss is the model's own; the last lines of the log are for evaluation."""
    path = Path(os.environ.get("CLICKS", "clicks.csv"))
    if not path.is_file():
        raise HeterpsError(
            f"CLICKS: there is no file {path}; python -m heterps_runtime.examples.click_log {path} "
            "generates one"
        )
    lines = read(path)
    return TrainingProgram(
        optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3),
        data=Clicks(lines[:-HELD_OUT]),
        evaluation_data=Clicks(lines[-HELD_OUT:]),
        evaluate_every=50,
        metrics={"accuracy": accuracy},
    )


if __name__ == "__main__":
    parser = ExampleParser(__doc__)
    parser.add_argument("file", metavar="FILE", help="where to write the log")
    with errors_in_one_line():
        generate(parser.parse_args().file)
