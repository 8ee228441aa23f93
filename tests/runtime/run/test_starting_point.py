"""Where a run may begin, what it takes along, and what is refused before anything starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.run.starting_point import at_starting_point
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.state.checkpoint_files import (
    CheckpointDocument,
    layer_sizes,
    publish,
    unfinished_path,
)
from heterps_runtime.state.checkpoint_storage import write_tensors
from heterps_runtime.state.checksums import FileSum, write_checksums
from tests.runtime.small_runs import chain_of, problem_of


def _save(folder: Path, step: int) -> Path:
    """A checkpoint without tensors."""
    problem = problem_of("sequential")
    document = CheckpointDocument(
        step=step,
        seed=3,
        learning_rate=1e-2,
        plan=chain_of(problem, 3),
        num_ranks=2,
        layers=layer_sizes(problem.profile),
    )
    for rank in range(2):
        write_tensors(unfinished_path(folder, step), {}, None, rank)
    return publish(folder, document, keep=9)


def _start(
    folder: Path, problem: Problem | None = None, steps: int = 8, **options: Any
) -> tuple[RunSpecification, list[str]]:
    problem = problem or problem_of("sequential")
    plan = chain_of(problem, 2)
    saving = CheckpointSettings(folder=str(folder))
    settings = RunSettings(steps=steps, checkpoint=saving).changed(**options)
    specification = build_specification(
        problem, plan, build_schedule(problem, plan), settings, devices=plan.devices
    )
    return at_starting_point(specification, settings, problem, plan)


def test_resumed_run_takes_step_seed_and_learning_rate_along(tmp_path: Path) -> None:
    path = _save(tmp_path, 5)
    bigger = problem_of("sequential", global_batch_size=24)
    specification, remarks = _start(tmp_path, bigger, resume=True, weights="w")
    assert (specification.first_step, specification.resume_from) == (5, str(path))
    assert (specification.seed, specification.learning_rate) == (3, 1e-2)
    assert specification.weights is None
    seed, batch, weights = remarks
    assert "the checkpoint's seed 3, not 0" in seed
    assert "to 24 samples; the data goes on after step 5" in batch
    assert "w is not read" in weights
    changed, _ = _start(tmp_path, resume=True, seed=3, learning_rate=0.5)
    assert changed.learning_rate == 0.5


def test_what_cannot_be_resumed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(HeterpsError, match="no complete checkpoint"):
        _start(tmp_path / "nothing", resume=True)
    with pytest.raises(HeterpsError, match="--resume: needs --checkpoint"):
        _start(tmp_path, resume=True, checkpoint=CheckpointSettings())
    _save(tmp_path, 5)
    with pytest.raises(HeterpsError, match="5 steps are done already; give more"):
        _start(tmp_path, resume=True, steps=5)
    with pytest.raises(HeterpsError, match=r"of another model \('sequential', 8 layers\)"):
        _start(tmp_path, problem_of("ctr"), resume=True)
    with pytest.raises(HeterpsError, match=r"saved with optimizer adamw, .* job has sgd"):
        _start(tmp_path, problem_of("sequential", optimizer="sgd"), resume=True)


def test_folders_that_cannot_be_used_are_refused_before_anything_starts(tmp_path: Path) -> None:
    _save(tmp_path / "used", 5)
    with pytest.raises(HeterpsError, match=r"has checkpoints already .*--resume"):
        _start(tmp_path / "used")
    with pytest.raises(HeterpsError, match="is a checkpoint itself"):
        _start(tmp_path / "used" / "step-000005", resume=True)
    (tmp_path / "file").write_text("")
    with pytest.raises(HeterpsError, match="cannot be written: Not a directory"):
        _start(tmp_path / "file" / "below")
    with pytest.raises(HeterpsError, match="is no folder"):
        _start(tmp_path / "new", weights=str(tmp_path / "file"))
    (tmp_path / "empty").mkdir()
    with pytest.raises(HeterpsError, match=r"has no weights; expected \*.safetensors"):
        _start(tmp_path / "new", weights=str(tmp_path / "empty"))


def test_broken_document_is_named(tmp_path: Path) -> None:
    path = _save(tmp_path, 5) / "checkpoint.json"
    path.write_text("{}")
    with pytest.raises(HeterpsError, match=r"checkpoint.json has 2 bytes, and \d+ were written"):
        _start(tmp_path, resume=True)
    write_checksums(path.parent, [FileSum.of(path, b"{}")])
    with pytest.raises(HeterpsError, match=r"checkpoint.json: .*step"):
        _start(tmp_path, resume=True)
