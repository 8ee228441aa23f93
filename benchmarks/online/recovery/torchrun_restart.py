"""A rank under torchrun that kills itself once: how long until all train again?

    torchrun --nproc-per-node 4 --max-restarts 3 torchrun_restart.py FOLDER

The killed rank leaves the time of its end in FOLDER, rank 0 that of the first step after the
restart. No state is saved or loaded: this is the least that a restart takes.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

STEPS, FAULT_STEP, VICTIM = 12, 6, 1


def main(folder: Path) -> None:
    """Trains a few steps, and again after the restart."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, attempt = dist.get_rank(), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    model = nn.Linear(64, 64)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        model(torch.ones(4, 64)).sum().backward()
        for parameter in model.parameters():
            assert parameter.grad is not None
            dist.all_reduce(parameter.grad)
        optimizer.step()
        time.sleep(0.02)
        if attempt > 0 and step == 0 and rank == 0:
            (folder / "again").write_text(repr(time.monotonic()))
        if attempt == 0 and step == FAULT_STEP and rank == VICTIM:
            (folder / "fault").write_text(repr(time.monotonic()))
            os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
