"""A rank of an example, forked from a process that has imported what it needs."""

from __future__ import annotations

import contextlib
import json
import os
from importlib import import_module
from pathlib import Path

import torch.fx.experimental.symbolic_shapes  # noqa: F401 - for all ranks, forked from here

from heterps_runtime.own_loop import trainer
from heterps_runtime.process.without_compiler import keep_compiler_out

with contextlib.suppress(ImportError):  # only some examples need it
    from transformers import LlamaConfig, LlamaForCausalLM  # noqa: F401

assert trainer.__name__, "imported before ranks are forked"


def main(arguments: list[str]) -> int:
    """Trains as the example does, and writes the losses that this rank knows."""
    keep_compiler_out()
    folder, module, steps = arguments
    example = import_module(f"heterps_runtime.examples.{module}")
    losses = example.main(str(Path(folder, "plan.yaml")), int(steps))
    Path(folder, f"losses-{os.environ['RANK']}.json").write_text(json.dumps(losses))
    return 0
