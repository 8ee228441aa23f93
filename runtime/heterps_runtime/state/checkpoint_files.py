"""The folder of checkpoints: which are complete, what they say of themselves, which are pruned.

    FOLDER/step-000010/checkpoint.json        what it is of: plan, step, seed, learning rate
                       checksums.txt          what is checked before the others are parsed
                       tensors-0.safetensors  one for each rank that saved

A checkpoint is written under a hidden name, and gets its own when everything is on the disk. So a
folder `step-...` is always complete, whatever happened while it was written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, PositiveInt

from heterps_configs.documents.base import Document, parameter_format
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, PlanMismatchError
from heterps_runtime.state.checksums import (
    CHECKSUMS_FILE,
    FileSum,
    read_checksums,
    read_head,
    write_checksums,
    write_synced,
)
from heterps_runtime.state.old_checkpoint import is_old
from heterps_runtime.state.stored_files import LocalFiles, StoredFiles
from heterps_runtime.state.tensor_file import read_own_table
from heterps_runtime.training.sample_order import Position

DOCUMENT_FILE = "checkpoint.json"
_STEP = re.compile(r"step-(\d+)")
_UNFINISHED = ".saving-"
# Of `checkpoint.json`.
_MOST_BYTES = 256 * 2**20
_WRITTEN_BY = re.compile(r"step-\d+-(\d+)$")


class CheckpointDocument(Document):
    """What `checkpoint.json` says.

    Attributes:
        format: 1: the tensors are torch.distributed.checkpoint's (`old_checkpoint`).
        step: Steps that are done. Batches are a function of seed and step, so that this is the
            position in the data, too.
        seed: Of the data.
        learning_rate: None for the optimizer's usual one.
        max_gradient_norm: None for no limit.
        plan: What it was saved under, with the job.
        num_ranks: Processes that saved.
        layers: Parameters of each layer of the model, by name.
        tied_names: Other names of parameters that are saved under their first.
        program: The training program that it was trained with; None for none.
        data_position: How far training was in the program's data; None where only the step counts.
        program_state: The program's own state (`heterps_runtime.training.own_state`).
    """

    format: Literal[1, 2] = 2
    step: int = Field(ge=0)
    seed: int
    learning_rate: float | None
    max_gradient_norm: float | None = None
    plan: Plan
    num_ranks: PositiveInt
    layers: Mapping[str, int]
    tied_names: Mapping[str, str] = {}
    program: str | None = None
    data_position: Position | None = None
    program_state: Mapping[str, Any] = {}

    @classmethod
    def of(cls, checkpoint: Path) -> CheckpointDocument:
        """Reads that of one checkpoint.

        Raises:
            HeterpsError: It is missing or broken.
        """
        if not (checkpoint / DOCUMENT_FILE).is_file():
            raise HeterpsError(f"{checkpoint}: is no checkpoint; it has no {DOCUMENT_FILE}")
        return cls.read(LocalFiles(checkpoint))

    @classmethod
    def read(cls, files: StoredFiles) -> CheckpointDocument:
        """Reads that of a checkpoint anywhere.

        Raises:
            HeterpsError: It is missing, damaged or broken.
        """
        if is_old(files):
            content = files.read(DOCUMENT_FILE, 0, min(files.size(DOCUMENT_FILE), _MOST_BYTES))
        else:
            line = read_checksums(files).get(DOCUMENT_FILE)
            if line is None or line.head_bytes != line.num_bytes:
                raise files.damaged(f"{CHECKSUMS_FILE} has no line for {DOCUMENT_FILE}")
            content = read_head(files, line)
        try:
            found = json.loads(content)
        except (ValueError, RecursionError) as error:
            raise files.damaged(f"{DOCUMENT_FILE}: {error}") from None
        return cls.from_mapping(found, source=f"{files.place}/{DOCUMENT_FILE}")

    def check(self, checkpoint: Path | str, profile: ModelProfile, plan: Plan) -> None:
        """Refuses a run that cannot go on from here. Cuts, devices and micro-batches may differ.

        Raises:
            PlanMismatchError: It is of another model.
            HeterpsError: The optimizer or the format of the parameters differs.
        """
        if dict(self.layers) != layer_sizes(profile):
            raise PlanMismatchError(
                f"{checkpoint}: is of another model ({self.plan.model!r}, {len(self.layers)} "
                f"layers) than the plan's ({profile.name!r}, {profile.num_layers} layers)"
            )
        saved, wanted = self.plan.job, plan.job
        if saved.optimizer != wanted.optimizer:
            raise _differs(checkpoint, "optimizer", saved.optimizer, wanted.optimizer)
        if parameter_format(saved.dtype) != parameter_format(wanted.dtype):
            raise _differs(checkpoint, "dtype", saved.dtype, wanted.dtype)


def _differs(checkpoint: Path | str, field: str, saved: str, wanted: str) -> HeterpsError:
    return HeterpsError(
        f"{checkpoint}: was saved with {field} {saved}, and the plan's job has {wanted}"
    )


def layer_sizes(profile: ModelProfile) -> dict[str, int]:
    """Number of parameters of each layer: tells models apart, whatever their inputs' size."""
    return {layer.name: layer.num_parameters for layer in profile.layers}


def checkpoint_path(folder: Path, step: int) -> Path:
    """Where the checkpoint after `step` steps lies."""
    return folder / f"step-{step:06d}"


def unfinished_path(folder: Path, step: int, generation: int = 0) -> Path:
    """Where it is written, by one generation of a run: what an earlier one left never mixes in."""
    suffix = f"-{generation}" if generation else ""
    return folder / f"{_UNFINISHED}{checkpoint_path(folder, step).name}{suffix}"


def complete_checkpoints(folder: Path) -> list[Path]:
    """Oldest first; none where there is no such folder."""
    if not folder.is_dir():
        return []
    found = [
        (int(match[1]), path)
        for path in folder.iterdir()
        if (match := _STEP.fullmatch(path.name)) and path.is_dir()
    ]
    return [path for _, path in sorted(found)]


def find_checkpoint(folder: str | os.PathLike[str]) -> Path:
    """The newest of a folder of checkpoints, or the folder itself where it is one.

    Raises:
        HeterpsError: There is none.
    """
    path = Path(folder)
    if (path / DOCUMENT_FILE).is_file():
        return path
    found = complete_checkpoints(path)
    if not found:
        raise HeterpsError(f"{path}: there is no complete checkpoint (step-NUMBER) to resume from")
    return found[-1]


def prepare_folder(folder: Path, *, is_resumed: bool) -> None:
    """Creates the folder of a run that will save, and makes sure of it before anything starts.

    Raises:
        HeterpsError: It cannot be written to, or holds the checkpoints of another run.
    """
    if (folder / DOCUMENT_FILE).is_file():
        raise HeterpsError(f"{folder}: is a checkpoint itself; name the folder that holds it")
    found = complete_checkpoints(folder)
    if found and not is_resumed:
        raise HeterpsError(
            f"{folder}: has checkpoints already (the newest is {found[-1].name}); go on from it "
            "with --resume, or name another folder"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise HeterpsError(f"{folder}: checkpoints cannot be written: {error.strerror}") from None
    drop_unfinished(folder)


def drop_unfinished(folder: Path, generation: int | None = None) -> None:
    """Removes what saves left that never ended.

    Args:
        folder: Of the checkpoints.
        generation: Only what it and earlier ones of the run left; None for all.
    """
    for path in folder.glob(f"{_UNFINISHED}*"):
        match = _WRITTEN_BY.search(path.name)
        if generation is None or match is None or int(match[1]) <= generation:
            shutil.rmtree(path, ignore_errors=True)


def publish(
    folder: Path,
    document: CheckpointDocument,
    keep: int,
    needed: Collection[str] = (),
    generation: int = 0,
) -> Path:
    """Makes what was written the newest checkpoint, and removes what is older than the `keep` last.

    One of the same step makes room: a run that went back past a damaged one comes by again.

    Args:
        folder: Of the checkpoints.
        document: Of the new one.
        keep: How many stay.
        needed: Others that stay besides.
        generation: Of the run, which wrote it.

    Raises:
        OSError: A file cannot be written.
        HeterpsError: The same, or the ranks wrote into different folders.
    """
    written = unfinished_path(folder, document.step, generation)
    path = checkpoint_path(folder, document.step)
    for rank in range(document.num_ranks):
        if not tensors_path(written, rank).is_file():
            raise HeterpsError(
                f"rank {rank} wrote elsewhere: {folder} is not the same folder on all hosts"
            )
    paths = [tensors_path(written, rank) for rank in range(document.num_ranks)]
    sums = [FileSum.of(path, read_own_table(path)) for path in paths]
    content = document.model_dump_json().encode()
    write_synced(written / DOCUMENT_FILE, content)
    write_checksums(written, [FileSum.of(written / DOCUMENT_FILE, content), *sums])
    _sync(written)
    replaced = folder / f"{_UNFINISHED}replaced-{path.name}"
    if path.exists():
        path.rename(replaced)
    written.rename(path)
    _sync(folder)
    shutil.rmtree(replaced, ignore_errors=True)
    for old in complete_checkpoints(folder)[:-keep]:
        if str(old) not in needed:
            shutil.rmtree(old, ignore_errors=True)
    return path


def tensors_path(checkpoint: Path, rank: int) -> Path:
    """Where one rank writes its tensors."""
    return checkpoint / f"tensors-{rank}.safetensors"


def _sync(folder: Path) -> None:
    """Puts a rename on the disk."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
