"""A small whole checkpoint, and what ranks read of one when a run goes on from it."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from benchmarks.trust.document_checks import BEGINS
from benchmarks.trust.valid_documents import PROFILE, small_plan
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_runtime.run.starting_point import begin
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.state.checkpoint import restore
from heterps_runtime.state.checkpoint_files import (
    CheckpointDocument,
    layer_sizes,
    publish,
    unfinished_path,
)
from heterps_runtime.state.checkpoint_storage import write_tensors
from heterps_runtime.state.layout import VALUE, checkpoint_key

STEP = 2
# By path below the folder of checkpoints; a path as content is a link to there.
Content = Mapping[str, bytes | Path]


def _model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Linear(4, 2))


@cache
def valid_checkpoint() -> dict[str, bytes]:
    """The files of a checkpoint of two ranks, by their paths in a folder of checkpoints."""
    tensors: list[dict[str, torch.Tensor]] = [{}, {}]
    for name, parameter in _model().named_parameters():
        own = tensors[name.startswith("1.")]
        own[checkpoint_key(name, VALUE)] = parameter.detach()
        own[checkpoint_key(name, "step")] = torch.tensor(float(STEP))
        own[checkpoint_key(name, "exp_avg")] = torch.ones_like(parameter)
    document = CheckpointDocument(
        step=STEP,
        seed=0,
        learning_rate=0.01,
        plan=Plan.from_mapping(small_plan()),
        num_ranks=len(tensors),
        layers=layer_sizes(ModelProfile.from_mapping(PROFILE)),
    )
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for rank, own in enumerate(tensors):
            write_tensors(unfinished_path(folder, STEP), own, None, rank)
        publish(folder, document, keep=1)
        return {
            str(path.relative_to(folder)): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def read_as_ranks_do(*arguments: Any, **settings: Any) -> NoReturn:
    """In the place of `begin`: what ranks read of a checkpoint is read here, and none is started.

    Raises:
        HeterpsError: Always.
    """
    specification: RunSpecification = begin(*arguments, **settings)
    assert specification.resume_from is not None
    model = _model()
    optimizer = torch.optim.AdamW(model.parameters())
    try:
        restore(specification.resume_from, dict(model.named_parameters()), [], optimizer)
    except HeterpsError as error:
        # A rank says so: the run has begun, and has a log.
        raise HeterpsError(f"{error}; {BEGINS}") from None
    raise HeterpsError(BEGINS)


def write_folder(folder: Path, content: Content) -> None:
    """Writes a folder of checkpoints."""
    folder.mkdir()
    for name, each in content.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(each, bytes):
            path.write_bytes(each)
        else:
            path.symlink_to(each)
