"""A user's own loop: equal to one process, and one clear error on every rank."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_runtime.own_loop.trainer import PipelineTrainer
from heterps_runtime.run.launcher import run_ranks
from heterps_runtime.state.checkpoint import load_state_dict
from heterps_runtime.training.program import TrainingProgram
from tests.runtime.trainer_plans import plan_of_cuts, replicas_of_groups


def _run(tmp_path: Path, plan: Plan, processes: int, *options: str) -> list[str]:
    """What each rank wrote."""
    tmp_path.mkdir(exist_ok=True)
    plan.to_file(tmp_path / "plan.yaml")
    run_ranks("tests.runtime.trainer_script", processes, tmp_path, 60, options)
    return [(tmp_path / f"rank-{rank}.txt").read_text() for rank in range(processes)]


@pytest.mark.slow
def test_replicas_of_groups_learn_what_one_process_learns(tmp_path: Path) -> None:
    """Dropout, clipping, recompute, shared state, uneven shares; and on from a checkpoint."""
    (alone,) = _run(tmp_path / "one", plan_of_cuts(), 1, "again")
    together = _run(tmp_path / "four", replicas_of_groups(), 4, "again")
    for text in together:
        assert ast.literal_eval(text) == pytest.approx(ast.literal_eval(alone), abs=1e-5)
    saved, expected = (load_state_dict(tmp_path / name) for name in ("four", "one"))
    assert saved.optimizer.keys() == expected.optimizer.keys()
    for name, tensor in expected.model.items():
        torch.testing.assert_close(saved.model[name], tensor, atol=1e-5, rtol=1e-4)
    for name, state in expected.optimizer.items():
        torch.testing.assert_close(saved.optimizer[name], state, atol=1e-5, rtol=1e-4)


@pytest.mark.slow
def test_a_fit_goes_on_after_a_sample_that_one_rank_could_not_read(tmp_path: Path) -> None:
    """The same error, the same losses and the same measurements on every rank."""
    (plain,) = _run(tmp_path / "one", plan_of_cuts(), 1)
    first, second = (ast.literal_eval(text) for text in _run(tmp_path, plan_of_cuts(2), 2, "fit"))
    assert first == second
    losses, message, devices, done = first
    assert message == "rank 0 (d0): OSError: the disk is gone"
    assert done == 2
    assert losses == pytest.approx(ast.literal_eval(plain)[2:], abs=1e-5)
    assert devices == ["d0", "d1"]


@pytest.mark.slow
def test_a_batch_of_another_size_on_one_rank_is_an_error_on_every_rank(tmp_path: Path) -> None:
    for text in _run(tmp_path, plan_of_cuts(2), 2, "wrong"):
        assert "rank 1 (d1): batch: x0 has 12 samples" in text


@pytest.mark.slow
def test_a_plan_of_another_model_is_an_error_on_every_rank(tmp_path: Path) -> None:
    for text in _run(tmp_path, plan_of_cuts(2, num_layers=7), 2):
        assert "with 7 layers; this model has 5" in text


def test_another_number_of_processes_is_refused_before_anything_starts() -> None:
    with pytest.raises(HeterpsError, match=r"for 2 processes .* and 1 started"):
        PipelineTrainer(
            lambda: pytest.fail("built"),
            plan_of_cuts(2),
            TrainingProgram(loss=lambda a, b: a),
        )
