"""A user's program, as `torchrun` starts it: prints the losses of every rank.

    torchrun --nproc-per-node 2 -m tests.runtime.trainer_script PLAN FOLDER [wrong]

With `wrong`, rank 1 gets a batch of another size.
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


def model() -> nn.Module:
    """Five layers; the first is frozen, two drop numbers."""
    torch.manual_seed(0)
    layers = nn.Sequential(
        nn.Linear(8, 24), nn.Dropout(0.2), nn.Linear(24, 16), nn.Dropout(0.1), nn.Linear(16, 4)
    )
    layers[0].requires_grad_(False)
    return layers


def batches() -> Iterator[tuple[Tensor, Tensor]]:
    """The same on every rank."""
    generator = torch.Generator().manual_seed(1)
    for _ in range(STEPS):
        target = torch.randint(4, (BATCH,), generator=generator)
        yield torch.randn(BATCH, 8, generator=generator), target


def train(plan: str, folder: str) -> list[float]:
    """What a user writes."""
    trainer = PipelineTrainer(
        model,
        plan,
        loss=nn.functional.cross_entropy,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.5),
        max_gradient_norm=0.5,
    )
    losses = [trainer.step(inputs, target) for inputs, target in batches()]
    trainer.save(folder)
    return losses


def main(plan: str, folder: str, wrong: bool) -> None:
    """Writes the losses, or the error, of this rank into a file."""
    rank = int(os.environ.get("RANK", "0"))
    global BATCH
    BATCH = 12 if wrong and rank == 1 else BATCH
    try:
        text = repr(train(plan, folder))
    except HeterpsError as error:
        text = str(error)
    Path(folder, f"rank-{rank}.txt").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:] == ["wrong"])
