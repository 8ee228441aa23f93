"""`fit` and `evaluate`: what a loop in plain torch trains and finds, also after a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch.distributed as dist

from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.own_loop.trainer import PipelineTrainer
from tests.runtime.small_runs import chain_of, problem_of, sequential
from tests.runtime.training.small_program import (
    LAST_STEP,
    PointData,
    make,
    make_evaluated,
    plain_training,
)

STEPS = 8


@pytest.fixture(autouse=True)
def _group_of_its_own() -> Iterator[None]:
    """A trainer in this process starts a process group, which other tests do not expect."""
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def _trainer(resume: Path | None = None, *, is_evaluated: bool = False) -> PipelineTrainer:
    program = replace(make_evaluated() if is_evaluated else make(), data=None)
    plan = chain_of(problem_of("sequential"), devices=("d0",)).changed(model_fingerprint="")
    return PipelineTrainer(sequential, plan, program=program, resume=resume)


def test_a_fit_that_goes_on_from_a_checkpoint_is_a_plain_loop(tmp_path: Path) -> None:
    expected, saving = plain_training(STEPS), CheckpointSettings(folder=str(tmp_path), every=3)
    first = _trainer().fit(PointData(), num_steps=5, checkpoint=saving)
    trainer = _trainer(resume=tmp_path)
    second = trainer.fit(PointData(), num_steps=STEPS)
    assert [*first, *second] == pytest.approx(expected.losses, abs=1e-5)
    found = trainer.evaluate(PointData(21))
    assert found["loss"] == pytest.approx(expected.evaluations[-1][0], abs=1e-5)
    # A user's own loop goes on where `fit` has ended.
    data = PointData()
    trainer.step(data.x[:16], data.y[:16])
    assert trainer.num_steps == STEPS + 1


def test_a_callback_ends_a_fit() -> None:
    trainer = _trainer(is_evaluated=True)
    losses = trainer.fit(PointData(), num_steps=STEPS)
    assert losses == pytest.approx(plain_training(LAST_STEP).losses, abs=1e-5)


def test_data_that_the_model_does_not_take_is_one_clear_error() -> None:
    trainer = _trainer()
    with pytest.raises(HeterpsError, match="fit: there is no data"):
        trainer.fit(num_steps=1)
    with pytest.raises(HeterpsError, match="data: is empty"):
        trainer.fit([], num_steps=1)
    with pytest.raises(HeterpsError, match="a sample must be inputs and target"):
        trainer.fit([1.0, 2.0], num_steps=1)
