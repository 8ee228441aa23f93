"""A rank of an exported script, forked from a process that has imported what the script needs."""

from __future__ import annotations

import contextlib
import os
import runpy
from pathlib import Path

import torch
from torch.distributed import pipelining
from transformers import LlamaForCausalLM

IMPORTED_BEFORE_RANKS_ARE_FORKED = pipelining, LlamaForCausalLM


def main(arguments: list[str]) -> int:
    """Does what `torchrun train.py` would, and keeps what the rank prints."""
    folder, port = arguments
    torch.set_num_threads(1)
    # The socket at the usual port is one that `heterps` hands on, which scripts know nothing of.
    os.environ["MASTER_PORT"] = port
    printed = Path(folder, f"printed-{os.environ['RANK']}.txt")
    with printed.open("w") as file, contextlib.redirect_stdout(file):
        runpy.run_path(str(Path(folder, "train.py")), run_name="__main__")
    return 0
