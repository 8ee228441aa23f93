"""A user's program, as `torchrun` starts it: prints the losses of every rank.

    torchrun --nproc-per-node 2 -m tests.runtime.trainer_script PLAN FOLDER [wrong|again|fit]

With `wrong`, rank 1 gets a batch of another size. With `again`, it goes on from what it has saved.
With `fit`, a data set is trained on, of which one sample cannot be read the first time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.fx.experimental.symbolic_shapes  # for all ranks, which are forked from here
from torch import Tensor, nn

from heterps import PipelineTrainer, TrainingProgram
from heterps_configs.errors import HeterpsError
from heterps_runtime.process.without_compiler import keep_compiler_out

keep_compiler_out()

STEPS = 3
BATCH = 16


class Block(nn.Module):
    """Two linear layers, between which a group can split numbers and drop some."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(24, 32), nn.Linear(32, 24)
        self.dropout = nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        """A residual block."""
        output: Tensor = x + self.second(self.dropout(self.first(x).relu()))
        return output


def model() -> nn.Module:
    """Five layers; the first is frozen, two drop numbers, one can be split."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Linear(8, 24), Block(), nn.Linear(24, 24), nn.Dropout(0.1), nn.Linear(24, 4)
    )
    layers[0].requires_grad_(False)
    return layers


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        target = torch.randint(4, (BATCH,), generator=generator)
        yield torch.randn(BATCH, 8, generator=generator), target


def program(data: Samples | None = None) -> TrainingProgram:
    """Loss and optimizer; data where the trainer reads it."""
    return TrainingProgram(
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.5),
        max_gradient_norm=0.5,
        data=data,
        shuffle=False,
    )


def train(plan: str, folder: str, resume: str | None = None) -> list[float]:
    """What a user writes."""
    trainer = PipelineTrainer(model, plan, program(), resume=resume)
    losses = [trainer.step(inputs, target) for inputs, target in batches()]
    trainer.save(folder)
    return losses


class Samples:
    """The batches in a row; the last sample is broken at first, for all that read it."""

    is_broken = True

    def __init__(self) -> None:
        found = list(batches())
        self.inputs = torch.cat([inputs for inputs, _ in found])
        self.target = torch.cat([target for _, target in found])

    def __len__(self) -> int:
        return STEPS * BATCH

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        if self.is_broken and index == len(self) - 1:
            raise OSError("the disk is gone")
        return self.inputs[index], self.target[index]


def fit(plan: str) -> tuple[list[float], str, list[str], int]:
    """Losses, the error of the first attempt, and what was measured."""
    trainer = PipelineTrainer(model, plan, program(Samples()))
    message = ""
    try:
        trainer.fit(num_steps=STEPS)
    except HeterpsError as error:
        message = str(error)
    done = trainer.num_steps
    Samples.is_broken = False
    losses = trainer.fit(num_steps=STEPS)
    assert trainer.measured is not None
    assert len(trainer.measured.step_times_s) == len(losses) == STEPS - done
    return losses, message, sorted({event.device for event in trainer.measured.timeline}), done


def main(arguments: list[str]) -> int:
    """What a rank of our own launcher does: the plan is in the folder."""
    write_losses(str(Path(arguments[0], "plan.yaml")), *arguments)
    return 0


def write_losses(plan: str, folder: str, what: str = "") -> None:
    """Writes the losses, or the error, of this rank into a file."""
    rank = int(os.environ.get("RANK", "0"))
    global BATCH
    BATCH = 12 if what == "wrong" and rank == 1 else BATCH
    try:
        if what == "fit":
            Path(folder, f"rank-{rank}.txt").write_text(repr(fit(plan)))
            return
        losses = train(plan, folder)
        if what == "again":
            losses += train(plan, folder, resume=folder)
        text = repr(losses)
    except HeterpsError as error:
        text = str(error)
    Path(folder, f"rank-{rank}.txt").write_text(text)


if __name__ == "__main__":
    write_losses(*sys.argv[1:])
