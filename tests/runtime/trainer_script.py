"""A user's program, as `torchrun` starts it: prints the losses of every rank.

    torchrun --nproc-per-node 2 -m tests.runtime.trainer_script PLAN FOLDER [wrong|again]

With `wrong`, rank 1 gets a batch of another size. With `again`, it goes on from what it has saved.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn

from heterps import PipelineTrainer
from heterps_configs.errors import HeterpsError

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


def train(plan: str, folder: str, resume: str | None = None) -> list[float]:
    """What a user writes."""
    trainer = PipelineTrainer(
        model,
        plan,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5, momentum=0.5),
        max_gradient_norm=0.5,
        resume=resume,
    )
    losses = [trainer.step(inputs, target) for inputs, target in batches()]
    trainer.save(folder)
    return losses


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
        losses = train(plan, folder)
        if what == "again":
            losses += train(plan, folder, resume=folder)
        text = repr(losses)
    except HeterpsError as error:
        text = str(error)
    Path(folder, f"rank-{rank}.txt").write_text(text)


if __name__ == "__main__":
    write_losses(*sys.argv[1:])
