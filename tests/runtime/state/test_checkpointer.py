"""Saving beside training: what fails is said, and earlier checkpoints stay."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.run.starting_point import at_starting_point
from heterps_runtime.run.trainer import Trainer
from heterps_runtime.run.verify import reference_losses
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.state import checkpoint_files, checkpointer, remote_storage
from heterps_runtime.state.checkpoint_files import complete_checkpoints
from heterps_runtime.state.remote_checkpoint import remote_checkpoints
from heterps_runtime.state.remote_storage import RemoteStorage
from heterps_runtime.transport.communication import Communicator
from tests.runtime.small_runs import plan_of, problem_of

STEPS = 4


@pytest.fixture
def communicator(tmp_path: Path) -> Iterator[Communicator]:
    """A group of one process."""
    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield Communicator()
    dist.destroy_process_group()


def _specification(folder: Path, num_steps: int = STEPS) -> RunSpecification:
    """One stage; saves behind every second step."""
    problem = problem_of("sequential")
    plan = plan_of(problem, {"a": (0, -1, "d0")})
    schedule = build_schedule(problem, plan)
    built = build_specification(
        problem, plan, schedule, RunSettings(steps=num_steps), devices=("d0",)
    )
    settings = CheckpointSettings(folder=str(folder), every=2)
    return built.changed(checkpoint=settings)


def test_save_that_fails_is_reported_and_the_run_goes_on(
    communicator: Communicator, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    specification = _specification(folder)
    lines: list[dict[str, Any]] = []

    def block(line: dict[str, Any]) -> None:
        """A file takes the folder's place until the third step."""
        lines.append(line)
        if line.get("step") == 0:
            folder.write_text("no folder")
        elif "message" in line:
            folder.unlink()

    Trainer(specification, tmp_path, communicator, on_step=block).run()
    (message,) = [line["message"] for line in lines if "message" in line]
    assert message.startswith("the checkpoint after step 2 cannot be written to ")
    assert message.endswith(": Not a directory (.saving-step-000002)")
    assert len([line for line in lines if "loss" in line]) == STEPS
    assert [path.name for path in complete_checkpoints(folder)] == ["step-000004"]


def test_run_whose_last_save_fails_says_so_and_leaves_its_result(
    communicator: Communicator, tmp_path: Path
) -> None:
    folder = tmp_path / "checkpoints"
    folder.write_text("no folder")
    lines: list[dict[str, Any]] = []
    Trainer(_specification(folder, num_steps=1), tmp_path, communicator, on_step=lines.append).run()
    assert "after step 1 cannot be written" in lines[-1]["checkpoint_error"]
    assert (tmp_path / "result-0.json").exists()


def test_crash_in_the_middle_of_a_save_leaves_the_one_before(
    communicator: Communicator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoints"

    class CrashError(BaseException):
        """What no handler expects."""

    publish = checkpoint_files.publish

    def crash_late(folder: Path, document: Any, *options: Any) -> Path:
        """Everything is written, and nothing has its name yet."""
        if document.step > 2:
            raise CrashError
        return publish(folder, document, *options)

    monkeypatch.setattr(checkpointer, "publish", crash_late)
    with pytest.raises(CrashError):
        Trainer(_specification(folder), tmp_path, communicator).run()
    assert [path.name for path in complete_checkpoints(folder)] == ["step-000002"]
    assert (folder / ".saving-step-000004" / "tensors-0.safetensors").is_file()


@pytest.mark.slow
def test_run_goes_on_from_its_remote_copies_alone(
    communicator: Communicator, tmp_path: Path
) -> None:
    problem = problem_of("sequential")
    plan = plan_of(problem, {"a": (0, -1, "d0")})
    remote = f"file://{tmp_path / 'remote'}"

    def start(folder: str, *, is_resumed: bool) -> RunSpecification:
        saving = CheckpointSettings(folder=str(tmp_path / folder), every=2, remote=remote)
        steps = STEPS + 2 if is_resumed else STEPS
        settings = RunSettings(steps=steps, checkpoint=saving, resume=is_resumed)
        schedule = build_schedule(problem, plan)
        built = build_specification(problem, plan, schedule, settings, devices=("d0",))
        return at_starting_point(built, settings, problem, plan)[0]

    first: list[dict[str, Any]] = []
    specification = start("first", is_resumed=False)
    Trainer(specification, tmp_path, communicator, on_step=first.append).run()
    assert not [line["message"] for line in first if "message" in line]
    assert list(remote_checkpoints(RemoteStorage(remote))) == [2, 4]
    with pytest.raises(HeterpsError, match=r"remote: has checkpoints already .*step-000004.*"):
        start("other", is_resumed=False)
    resumed = start("second", is_resumed=True)
    assert (resumed.first_step, resumed.resume_from) == (4, f"{remote}/step-000004")
    second: list[dict[str, Any]] = []
    Trainer(resumed, tmp_path, communicator, on_step=second.append).run()
    whole = reference_losses(specification.changed(num_steps=STEPS + 2))
    found = [line["loss"] for line in first + second if "loss" in line]
    assert found == pytest.approx(whole, abs=1e-5)
    assert list(remote_checkpoints(RemoteStorage(remote))) == [4, 6]


def test_remote_storage_that_refuses_is_a_remark_of_the_run(
    communicator: Communicator, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_storage, "RETRY_S", (0.0,))
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    specification = _specification(tmp_path / "checkpoints", num_steps=2)
    assert specification.checkpoint is not None
    settings = specification.checkpoint.changed(remote=f"file://{blocked}")
    specification = specification.changed(checkpoint=settings)
    lines: list[dict[str, Any]] = []
    Trainer(specification, tmp_path, communicator, on_step=lines.append).run()
    (message,) = [line["message"] for line in lines if "message" in line]
    assert "step-000002 could not be copied to the remote storage; the run goes on" in message
    assert len(complete_checkpoints(tmp_path / "checkpoints")) == 1
