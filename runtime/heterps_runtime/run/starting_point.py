"""What a run starts from: a seed, a folder of weights or a checkpoint; checked beforehand."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_runtime.specification.checkpoint_settings import CheckpointSettings
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.state.checkpoint_files import (
    CheckpointDocument,
    complete_checkpoints,
    find_checkpoint,
    prepare_folder,
)
from heterps_runtime.state.remote_storage import is_url


@dataclass(frozen=True)
class StartingPoint:
    """Where a run begins, as `run_plan` is told.

    Attributes:
        seed: Of the initial parameters and of the data.
        learning_rate: None for the optimizer's usual one, or the checkpoint's.
        checkpoint: Where and how often to save; None for never.
        is_resumed: Go on from the newest checkpoint of that folder and its remote copies.
        weights: Folder of safetensors files.
        max_gradient_norm: None for no limit, or the checkpoint's.
    """

    seed: int = 0
    learning_rate: float | None = None
    checkpoint: CheckpointSettings | None = None
    is_resumed: bool = False
    weights: str | os.PathLike[str] | None = None
    max_gradient_norm: float | None = None

    def applied_to(
        self, specification: RunSpecification, problem: Problem, plan: Plan
    ) -> tuple[RunSpecification, list[str]]:
        """The specification that begins here, and remarks for the user.

        Raises:
            PlanMismatchError: The checkpoint is of another model.
            HeterpsError: There is nothing to go on from, no step is left, the folder cannot be
                written to or has the checkpoints of another run, or there are no weights.
        """
        if self.is_resumed and self.checkpoint is None:
            raise HeterpsError("--resume: needs --checkpoint FOLDER, the folder to go on from")
        settings = self._absolute_settings()
        update: dict[str, object] = {
            "checkpoint": settings,
            "max_gradient_norm": self.max_gradient_norm,
        }
        remarks: list[str] = []
        if self.is_resumed:
            update |= self._resumed(problem, plan, specification.num_steps, remarks)
        elif self.weights is not None:
            update["weights"] = str(_weights_folder(Path(self.weights)))
        if settings is not None:
            prepare_folder(Path(settings.folder), is_resumed=self.is_resumed)
            if settings.remote is not None:
                prepare_remote(settings.remote, is_resumed=self.is_resumed)
        return specification.changed(**update), remarks

    def _absolute_settings(self) -> CheckpointSettings | None:
        """Workers may be started in another directory."""
        if self.checkpoint is None:
            return None
        folder, remote = str(Path(self.checkpoint.folder).absolute()), self.checkpoint.remote
        if remote is not None and not is_url(remote):
            remote = str(Path(remote).absolute())
        return self.checkpoint.changed(folder=folder, remote=remote)

    def _resumed(
        self, problem: Problem, plan: Plan, num_steps: int, remarks: list[str]
    ) -> dict[str, object]:
        settings = self._absolute_settings()
        assert settings is not None
        path, document = _newest(settings)
        document.check(path, problem.profile, plan)
        if document.step >= num_steps:
            raise HeterpsError(
                f"{path}: {document.step} steps are done already; give more with --steps, "
                "which counts from the beginning of training"
            )
        if document.seed != self.seed:
            remarks.append(
                f"the run goes on with the checkpoint's seed {document.seed}, not {self.seed}"
            )
        if document.plan.job.global_batch_size != plan.job.global_batch_size:
            remarks.append(
                f"the global batch changes from {document.plan.job.global_batch_size} to "
                f"{plan.job.global_batch_size} samples; the data goes on after step "
                f"{document.step}"
            )
        if self.weights is not None:
            remarks.append(f"{self.weights} is not read: the run goes on from {path}")
        return {
            "first_step": document.step,
            "seed": document.seed,
            "learning_rate": self.learning_rate or document.learning_rate,
            "max_gradient_norm": self.max_gradient_norm or document.max_gradient_norm,
            "resume_from": path,
        }


def _newest(settings: CheckpointSettings) -> tuple[str, CheckpointDocument]:
    """Path of the newest checkpoint, or URL where only the remote storage has it."""
    folder = Path(settings.folder)
    remote = None
    if settings.remote is not None:
        # fsspec takes half a second to import.
        from heterps_runtime.state.remote_checkpoint import newest_document

        remote = newest_document(settings.remote)
    paths = complete_checkpoints(folder)
    if remote is None or (paths and CheckpointDocument.of(paths[-1]).step >= remote[1].step):
        path = find_checkpoint(folder)
        return str(path), CheckpointDocument.of(path)
    return remote


def prepare_remote(url: str, *, is_resumed: bool) -> None:
    """Makes sure, before anything starts, that checkpoints can be copied to a URL.

    Raises:
        HeterpsError: It cannot be read, or holds the checkpoints of another run.
    """
    from heterps_runtime.state.remote_checkpoint import newest_document

    found = newest_document(url)
    if found is not None and not is_resumed:
        raise HeterpsError(
            f"{url}: has checkpoints already (the newest is {found[0].rpartition('/')[2]}); go on "
            "from it with --resume, or name another URL"
        )


def _weights_folder(folder: Path) -> Path:
    """Makes sure that there are weights; the ranks read them.

    Raises:
        HeterpsError: There are none, or a file cannot be read.
    """
    from heterps_runtime.models.safetensors import SafetensorsFolder

    if not folder.is_dir():
        raise HeterpsError(f"{folder}: is no folder; expected one with *.safetensors files")
    return SafetensorsFolder(folder.absolute()).folder
