"""HeterPS's own case: embedding tables on one device, the tower on another.

    torchrun --nproc-per-node 2 -m heterps_runtime.examples.train_click_through PLAN [STEPS]

The plan cuts `heterps_runtime.examples.ctr:click_through_tiny` behind its last table.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from heterps_runtime.examples.command_line import (
    ExampleParser,
    errors_in_one_line,
    positive_count,
)
from heterps_runtime.examples.ctr import NUM_DENSE, NUM_TABLES, click_through_tiny
from heterps_runtime.own_loop.trainer import PipelineTrainer
from heterps_runtime.training.program import TrainingProgram

ROWS = 1_000


def click_loss(logits: Tensor, target: Tensor) -> Tensor:
    """Mean binary cross entropy."""
    return nn.functional.binary_cross_entropy_with_logits(logits.squeeze(-1), target)


def batches(steps: int, batch_size: int) -> Iterator[tuple[tuple[Tensor, Tensor], Tensor]]:
    """Clicks that depend on the first number."""
    generator = torch.Generator().manual_seed(0)
    for _ in range(steps):
        sparse = torch.randint(ROWS, (batch_size, NUM_TABLES), generator=generator)
        dense = torch.randn(batch_size, NUM_DENSE, generator=generator)
        yield (sparse, dense), (dense[:, 0] > 0).float()


def main(plan: str, steps: int = 20) -> list[float]:
    """Trains; returns the losses."""
    program = TrainingProgram(
        loss=click_loss, optimizer=lambda parameters: torch.optim.Adam(parameters, lr=2e-3)
    )
    trainer = PipelineTrainer(click_through_tiny, plan, program)
    return [trainer.step(*batch) for batch in batches(steps, trainer.batch_size)]


if __name__ == "__main__":
    parser = ExampleParser(__doc__)
    parser.add_argument("plan", metavar="PLAN")
    parser.add_argument("steps", metavar="STEPS", nargs="?", type=positive_count, default=20)
    given = parser.parse_args()
    with errors_in_one_line():
        found = main(given.plan, given.steps)
    print(f"loss {found[0]:.4f} -> {found[-1]:.4f}", flush=True)
