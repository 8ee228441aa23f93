"""Which checkpoints count, which are refused, and what is said then; no tensors here."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.state.checkpoint_files import (
    CheckpointDocument,
    checkpoint_path,
    complete_checkpoints,
    drop_unfinished,
    find_checkpoint,
    layer_sizes,
    prepare_folder,
    publish,
    tensors_path,
    unfinished_path,
)
from heterps_runtime.state.tensor_file import write_tensor_file
from tests.runtime.small_runs import chain_of, problem_of


def _document(step: int) -> CheckpointDocument:
    problem = problem_of("sequential")
    return CheckpointDocument(
        step=step,
        seed=3,
        learning_rate=1e-2,
        plan=chain_of(problem, 3),
        num_ranks=2,
        layers=layer_sizes(problem.profile),
    )


def _save(folder: Path, step: int, origin: str | None = None) -> Path:
    """What the ranks and the publisher do, without tensors."""
    for rank in range(2):
        path = tensors_path(unfinished_path(folder, step), rank)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_tensor_file(path, {})
    return publish(folder, _document(step), keep=2, needed=() if origin is None else (origin,))


def test_only_published_checkpoints_count_and_old_ones_go(tmp_path: Path) -> None:
    for step in (2, 4, 1_000_000):
        assert _save(tmp_path, step) == checkpoint_path(tmp_path, step)
    unfinished_path(tmp_path, 9).mkdir()
    names = [path.name for path in complete_checkpoints(tmp_path)]
    assert names == ["step-000004", "step-1000000"]
    assert find_checkpoint(tmp_path).name == "step-1000000"
    assert CheckpointDocument.of(find_checkpoint(tmp_path / "step-000004")) == _document(4)
    prepare_folder(tmp_path, is_resumed=True)
    assert not unfinished_path(tmp_path, 9).exists()


def test_checkpoint_that_a_run_started_from_stays(tmp_path: Path) -> None:
    origin = _save(tmp_path, 1)
    for step in (2, 3, 4):
        _save(tmp_path, step, origin=str(origin))
    steps = [CheckpointDocument.of(path).step for path in complete_checkpoints(tmp_path)]
    assert steps == [1, 3, 4]


def test_ranks_that_wrote_elsewhere_are_named(tmp_path: Path) -> None:
    path = tensors_path(unfinished_path(tmp_path, 1), 0)
    path.parent.mkdir(parents=True)
    write_tensor_file(path, {})
    with pytest.raises(HeterpsError, match=r"rank 1 wrote elsewhere: .* same folder on all hosts"):
        publish(tmp_path, _document(1), keep=1)
    assert complete_checkpoints(tmp_path) == []


def test_saves_are_due_at_multiples_and_at_the_end() -> None:
    often, once = CheckpointSettings(folder="x", every=3), CheckpointSettings(folder="x")
    assert [step for step in range(1, 9) if often.is_due(step, 8)] == [3, 6, 8]
    assert [step for step in range(1, 9) if once.is_due(step, 8)] == [8]


def test_generations_of_a_run_leave_one_another_s_saves_alone(tmp_path: Path) -> None:
    paths = [unfinished_path(tmp_path, 4, generation) for generation in (0, 1, 2)]
    for path in paths:
        path.mkdir()
    drop_unfinished(tmp_path, 1)
    assert [path.exists() for path in paths] == [False, False, True]
    drop_unfinished(tmp_path)
    assert not paths[2].exists()


def test_checkpoint_of_the_same_step_makes_room(tmp_path: Path) -> None:
    first = _save(tmp_path, 2)
    (first / "old").write_text("")
    assert _save(tmp_path, 2) == first
    assert not (first / "old").exists()
    assert [path.name for path in tmp_path.iterdir()] == [first.name]
