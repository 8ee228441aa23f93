"""Trains every run directory in a folder, one after another, in one set of processes.

    torchrun --standalone --nproc-per-node 4 -m tests.runtime.train_many FOLDER

Starting a process takes longer than a tiny training. The references are shared among the ranks.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import torch

from heterps_runtime.run.trainer import Trainer
from heterps_runtime.run.verify import REFERENCE_FILE, reference_losses
from heterps_runtime.specification.run import SPECIFICATION_FILE, RunSpecification
from heterps_runtime.transport.communication import Communicator


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    communicator = Communicator()
    directories = sorted(folder.iterdir())
    for directory in directories:
        specification = RunSpecification.from_json_file(directory / SPECIFICATION_FILE)
        lines: list[dict[str, Any]] = []
        Trainer(specification, directory, communicator, on_step=lines.append).run()
        if communicator.rank == 0:
            (directory / "steps.json").write_text(json.dumps(lines))
    for directory in directories[communicator.rank :: communicator.world_size]:
        specification = RunSpecification.from_json_file(directory / SPECIFICATION_FILE)
        (directory / REFERENCE_FILE).write_text(json.dumps(reference_losses(specification)))
    communicator.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
