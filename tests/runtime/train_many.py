"""Trains every run directory in a folder, one after another, in one set of processes.

Starting a process takes longer than a tiny training. The references are shared among the ranks.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.fx.experimental.symbolic_shapes  # for all ranks, which are forked from here
from transformers import (  # noqa: F401 - once for all ranks, which are forked from here
    BertForMaskedLM,
    GPT2LMHeadModel,
    LlamaForCausalLM,
    ResNetForImageClassification,
    T5ForConditionalGeneration,
    ViTForImageClassification,
)

from heterps_runtime.models.trust import trust_source
from heterps_runtime.run.trainer import Trainer
from heterps_runtime.run.verify import REFERENCE_FILE, reference_losses
from heterps_runtime.specification.run import SPECIFICATION_FILE, RunSpecification
from heterps_runtime.transport.communication import Communicator


def main(arguments: list[str]) -> int:
    folder = Path(arguments[0])
    torch.set_num_threads(1)
    communicator = Communicator()
    directories = sorted(path for path in folder.iterdir() if path.is_dir())
    for directory in directories:
        specification = RunSpecification.from_json_file(directory / SPECIFICATION_FILE)
        trust_source(specification.profile.source)
        lines: list[dict[str, Any]] = []
        Trainer(specification, directory, communicator, on_step=lines.append).run()
        if communicator.rank == 0:
            (directory / "steps.json").write_text(json.dumps(lines))
    for directory in directories[communicator.rank :: communicator.world_size]:
        specification = RunSpecification.from_json_file(directory / SPECIFICATION_FILE)
        (directory / REFERENCE_FILE).write_text(json.dumps(reference_losses(specification)))
    communicator.close()
    return 0
