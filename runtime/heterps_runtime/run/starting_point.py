"""What a run starts from: a seed, a folder of weights or a checkpoint; checked beforehand."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.devices import check_choice, torch_devices
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.state.checkpoint_files import (
    CheckpointDocument,
    complete_checkpoints,
    find_checkpoint,
    prepare_folder,
)
from heterps_runtime.state.remote_storage import is_url
from heterps_runtime.training.sample_order import BEGINNING


def begin(
    problem: Problem,
    plan: Plan,
    schedule: Schedule,
    settings: RunSettings,
    *,
    devices: Sequence[str],
    events: Sequence[RunEvent],
    is_online: bool,
    on_message: Callable[[str], None],
) -> RunSpecification:
    """The specification of a run, from wherever it starts, and where its ranks compute.

    Args:
        problem: Of the plan.
        plan: What runs first.
        schedule: The plan's action lists.
        settings: Of the run.
        devices: Names by rank.
        events: Of them, what slows devices and links down.
        is_online: Measurements are published, new plans looked for.
        on_message: Called with remarks: what of the settings is ignored.

    Raises:
        PlanMismatchError: The checkpoint is of another model.
        HeterpsError: There is nothing to start from, or no CUDA device where that was asked for.
    """
    built = build_specification(
        problem, plan, schedule, settings, devices=devices, events=events, is_online=is_online
    )
    specification, remarks = at_starting_point(built, settings, problem, plan)
    for remark in remarks:
        on_message(remark)
    if settings.engine == "torch":
        if settings.device == "cuda":
            raise HeterpsError("device cuda: not with engine torch, which runs on the CPU")
        if specification.emulation is not None:
            on_message("engine torch: nothing is emulated; the run has the speed of this host")
        return specification.changed(emulation=None)
    places = torch_devices(problem.cluster, specification.devices, settings.device)
    check_choice(settings.device, places)
    return specification.changed(torch_devices=places)


def check_resumable(settings: RunSettings, problem: Problem, plan: Plan) -> None:
    """Reads what a run would go on from, its tables of tensors too, before anything is made.

    The tensors themselves are read by the ranks.

    Raises:
        PlanMismatchError: The checkpoint is of another model.
        HeterpsError: There is none, no step is left, or it is damaged.
    """
    saving = _absolute(settings.saving)
    if settings.resume and saving is not None:
        # Remote storage takes half a second to import.
        from heterps_runtime.state.checkpoint import check_tables

        found = _resumed(saving, settings, problem, plan, [])
        check_tables(str(found["resume_from"]))


def at_starting_point(
    specification: RunSpecification, settings: RunSettings, problem: Problem, plan: Plan
) -> tuple[RunSpecification, list[str]]:
    """The specification that begins where the settings say, and remarks for the user.

    Raises:
        PlanMismatchError: The checkpoint is of another model.
        HeterpsError: There is nothing to go on from, no step is left, the folder cannot be written
            to or has the checkpoints of another run, or there are no weights.
    """
    saving = _absolute(settings.saving)
    update: dict[str, object] = {"checkpoint": saving}
    remarks: list[str] = []
    if settings.resume:
        assert saving is not None
        update |= _resumed(saving, settings, problem, plan, remarks)
    elif settings.weights is not None:
        update["weights"] = str(check_weights(settings.weights))
    if saving is not None:
        prepare_folder(Path(saving.folder), is_resumed=settings.resume)
        if saving.remote is not None:
            prepare_remote(saving.remote, is_resumed=settings.resume)
    return specification.changed(**update), remarks


def _absolute(saving: CheckpointSettings | None) -> CheckpointSettings | None:
    """Workers may be started in another directory."""
    if saving is None:
        return None
    folder, remote = str(Path(saving.folder).absolute()), saving.remote
    if remote is not None and not is_url(remote):
        remote = str(Path(remote).absolute())
    return saving.changed(folder=folder, remote=remote)


def _resumed(
    saving: CheckpointSettings,
    settings: RunSettings,
    problem: Problem,
    plan: Plan,
    remarks: list[str],
) -> dict[str, object]:
    """What the newest checkpoint says, as fields of a specification; adds remarks."""
    path, document = _newest(saving)
    document.check(path, problem.profile, plan)
    if document.step >= settings.steps:
        raise HeterpsError(
            f"{path}: {document.step} steps are done already; give more with --steps, "
            "which counts from the beginning of training"
        )
    if document.program is not None and settings.program is None:
        raise HeterpsError(
            f"{path}: was trained with the program {document.program}; --program names it, and "
            "without one the run would go on with synthetic batches"
        )
    if document.seed != settings.seed:
        remarks.append(
            f"the run goes on with the checkpoint's seed {document.seed}, not {settings.seed}"
        )
    if document.plan.job.global_batch_size != plan.job.global_batch_size:
        remarks.append(
            f"the global batch changes from {document.plan.job.global_batch_size} to "
            f"{plan.job.global_batch_size} samples; the data goes on after step {document.step}"
        )
    if settings.weights is not None:
        remarks.append(f"{settings.weights} is not read: the run goes on from {path}")
    return {
        "first_step": document.step,
        "seed": document.seed,
        "learning_rate": settings.learning_rate or document.learning_rate,
        "max_gradient_norm": settings.max_gradient_norm or document.max_gradient_norm,
        "resume_from": path,
        "data_origin": document.data_position or BEGINNING,
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


def check_weights(name: str) -> Path:
    """Makes sure that there are weights; the ranks read them.

    Args:
        name: Of a folder.

    Returns:
        Its absolute path.

    Raises:
        HeterpsError: There are none, or a file cannot be read.
    """
    from heterps_runtime.models.safetensors import SafetensorsFolder

    folder = Path(name)
    if not folder.is_dir():
        raise HeterpsError(f"weights: {folder} is no folder; expected one with *.safetensors files")
    return SafetensorsFolder(folder.absolute()).folder
