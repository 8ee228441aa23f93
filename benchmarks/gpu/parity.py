"""Section `parity`: training under plans against training in one process, all on the GPU.

    python -m benchmarks.gpu.parity

The shapes and schedules of `benchmarks/parity`, float32: all devices of a plan take turns in this
process, on one GPU; the reference trains on it, too. A few cells run as real processes that share
the GPU.
"""

from __future__ import annotations

import argparse

import torch

from benchmarks.gpu.cases import Rows, run_section
from benchmarks.parity.plans import BY_BATCH, GROUP_SHAPES, SCHEDULES, SHAPES
from benchmarks.parity.runs import Cell, Outcome, run

NUM_STEPS = 3
MODELS = ("sequential", "gpt2", "resnet", "dropout, frozen")
# As processes that share the GPU: model, shape, schedule.
AS_PROCESSES = (
    ("llama", "unequal cuts", "zero-bubble"),
    ("sequential", "unequal replicas", "interleaved"),
    ("t5", "different depths", "interleaved"),
    ("dropout, frozen", "unequal replicas", "interleaved"),
)


def in_one_process(options: argparse.Namespace) -> Rows:
    """All shapes of a few models."""
    shapes = [shape for shape in SHAPES if shape != BY_BATCH]
    rows = []
    for model in MODELS[: 1 if options.quick else None]:
        for number, shape in enumerate(shapes):
            if model == "resnet" and shape in GROUP_SHAPES:
                continue  # batch normalisation is not split
            schedule = SCHEDULES[number % len(SCHEDULES)]
            rows.append(_row(Cell(model, shape, schedule, "adamw", True, options.device)))
    return rows


def in_processes(options: argparse.Namespace) -> Rows:
    """A few cells."""
    return [
        _row(Cell(model, shape, schedule, "adamw", False, options.device))  # type: ignore[arg-type]
        for model, shape, schedule in AS_PROCESSES[: 1 if options.quick else None]
    ]


def _row(cell: Cell) -> dict[str, object]:
    found: Outcome | None = None
    try:
        found = run(cell, 0, NUM_STEPS)
    except Exception as error:
        failed = f"{type(error).__name__}: {error}"[:600]
    row: dict[str, object] = {
        "model": cell.model,
        "shape": cell.shape,
        "schedule": cell.schedule,
        "as": "one process" if cell.is_local else "processes",
    }
    row |= found._asdict() if found else {"failed": failed}
    print(row, flush=True)
    return row


if __name__ == "__main__":
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False
    run_section(__doc__ or "", [in_processes, in_one_process])
