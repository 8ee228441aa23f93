"""One rank of the start-up benchmark: imports, waits for the others, and times its start."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

import torch

from heterps_runtime.process.allocator import keep_freed_memory
from heterps_runtime.process.without_compiler import keep_compiler_out
from heterps_runtime.run.trainer import Trainer
from heterps_runtime.specification.run import SPECIFICATION_FILE, RunSpecification
from heterps_runtime.transport.communication import Communicator


def main(directory: Path) -> None:
    """Prints the seconds from the last import to the first step, as JSON."""
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    if '"huggingface"' in (directory / SPECIFICATION_FILE).read_text():
        from transformers.models.llama import modeling_llama  # noqa: F401
    (directory / f"imported-{rank}").touch()
    while len(list(directory.glob("imported-*"))) < world_size:
        time.sleep(0.001)
    start_s = time.perf_counter()
    specification = RunSpecification.from_json_file(directory / SPECIFICATION_FILE)
    torch.set_num_threads(specification.num_threads)
    keep_freed_memory()
    keep_compiler_out()
    communicator = Communicator()
    Trainer(specification, directory, communicator)
    communicator.barrier()
    print(json.dumps({"start_s": time.perf_counter() - start_s}), flush=True)
    communicator.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    # As a worker does: torch's destructors take seconds.
    os._exit(0)
