"""Checkpoints of a user's own loop: what training goes on from, and what it leaves."""

from __future__ import annotations

import warnings
from pathlib import Path

from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_runtime.own_loop.ranks import Ranks
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.state.checkpoint import restore_stages
from heterps_runtime.state.checkpoint_files import (
    CheckpointDocument,
    find_checkpoint,
    prepare_folder,
)
from heterps_runtime.state.checkpointer import Checkpointer
from heterps_runtime.training.own_state import OwnState
from heterps_runtime.training.sample_order import BEGINNING, Position


def progress(folder: str | None, ranks: Ranks) -> tuple[int, Position]:
    """Optimizer steps that are done, and where the samples begin that are still due.

    Args:
        folder: A checkpoint, or a folder of them, whose newest one counts; None at the beginning.
        ranks: All of them read it.

    Raises:
        HeterpsError: On every rank, where one finds none or cannot read it.
    """
    if folder is None:
        return 0, BEGINNING
    document = ranks.together(lambda: CheckpointDocument.of(find_checkpoint(folder)))
    return document.step, document.data_position or BEGINNING


def restore(folder: str, owned: OwnedStages, own_state: OwnState, ranks: Ranks) -> None:
    """Gives a rank's stages, and the user's own state, the values of a checkpoint.

    Args:
        folder: The checkpoint, or a folder of them.
        owned: The stages, as they begin.
        own_state: Of the program; what it cannot load is warned of.
        ranks: Rank 0 warns.

    Raises:
        HeterpsError: The checkpoint is of another model, or cannot be read.
    """
    document = restore_stages(folder, owned)
    for remark in own_state.load(document.program_state):
        if ranks.is_first:
            # Where the user called the trainer.
            warnings.warn(remark, stacklevel=7)


def prepare(settings: CheckpointSettings, ranks: Ranks) -> None:
    """Makes the folder that checkpoints go into.

    Raises:
        HeterpsError: On every rank, where rank 0 cannot.
    """
    folder, is_first = Path(settings.folder), ranks.is_first
    ranks.together(lambda: prepare_folder(folder, is_resumed=True) if is_first else None)


def save(
    folder: str,
    specification: RunSpecification,
    owned: OwnedStages,
    own_state: OwnState,
    ranks: Ranks,
    *,
    num_steps: int,
) -> None:
    """Writes one checkpoint `step-N`; complete when it returns.

    Args:
        folder: Where it becomes a folder of its own.
        specification: What is trained.
        owned: This rank's stages.
        own_state: Of the program.
        ranks: All of them save.
        num_steps: Optimizer steps that are done.

    Raises:
        HeterpsError: It cannot be written.
    """
    settings = CheckpointSettings(folder=folder)
    specification = specification.changed(checkpoint=settings, num_steps=num_steps)
    prepare(settings, ranks)
    checkpointer = Checkpointer(specification, ranks.communicator, lambda event: None)
    checkpointer.after_step(num_steps, owned, specification, None, own_state.encoded)
    checkpointer.close()
