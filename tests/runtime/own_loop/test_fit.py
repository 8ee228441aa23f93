"""`fit` and `evaluate`: what a loop in plain torch trains and finds, also after a checkpoint."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.errors import HeterpsError
from heterps_runtime.own_loop.trainer import PipelineTrainer
from heterps_runtime.training.collating import collate_samples
from tests.runtime.small_runs import chain_of, problem_of, sequential
from tests.runtime.training.small_program import (
    LAST_STEP,
    RATE,
    PointData,
    make,
    make_evaluated,
    mean_loss,
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
    return PipelineTrainer(sequential, plan, program, resume=resume)


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
    measured = trainer.measured
    assert measured is not None
    assert len(measured.step_times_s) == STEPS - 5
    assert measured.memory_bytes["d0"] > 0
    assert {(each.device, each.stage) for each in measured.stages} == {("d0", "s0")}
    assert {event.action for event in measured.timeline} >= {"forward", "backward", "step"}


def test_a_state_dict_is_what_training_starts_from() -> None:
    data = PointData()
    inputs, target = data.x[:16], data.y[:16]
    torch.manual_seed(5)
    module = sequential()
    plan = chain_of(problem_of("sequential"), devices=("d0",)).changed(model_fingerprint="")
    program = replace(make(), data=None)
    trainer = PipelineTrainer(sequential, plan, program, weights=module.state_dict())
    with torch.no_grad():
        expected = mean_loss(module(inputs), target).item()
    assert trainer.step(inputs, target) == pytest.approx(expected, abs=1e-6)
    wrong = {**module.state_dict(), "0.weight": torch.zeros(3, 3)}
    other = PipelineTrainer(sequential, plan, program, weights=wrong)
    with pytest.raises(HeterpsError, match=r"state_dict: 0\.weight has shape \(3, 3\)"):
        other.step(inputs, target)


def test_a_callback_ends_a_fit() -> None:
    trainer = _trainer(is_evaluated=True)
    losses = trainer.fit(PointData(), num_steps=STEPS)
    assert losses == pytest.approx(plain_training(LAST_STEP).losses, abs=1e-5)
    assert trainer.measured is not None
    assert [found.step for found in trainer.measured.evaluations] == [2, 4, 6]


class _Mixed(nn.Module):
    """Takes whatever formats there are; a mask may be left out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.end = nn.Embedding(9, 8), nn.Linear(8, 4)

    def forward(
        self, ids: Tensor, image: Tensor, scale: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        found = self.embed(ids).sum(1) + image.float() / 255 * scale
        if mask is not None:
            found = found * mask
        result: Tensor = self.end(found)
        return result


FORMATS = {"ids": torch.int32, "image": torch.uint8, "scale": torch.bfloat16, "mask": torch.bool}


def _mixed_samples(*, has_mask: bool) -> list[dict[str, Any]]:
    draw = torch.Generator().manual_seed(2)
    rows = torch.randint(9, (16, 3, 8), generator=draw)
    return [
        {
            "ids": row[0, :3].int(), "image": row[1].to(torch.uint8) * 20,
            "scale": torch.tensor(0.5, dtype=torch.bfloat16).expand(8),
            "mask": (row[2] > 3) if has_mask else None, "labels": row[2, 0] % 4,
        }
        for row in rows
    ]  # fmt: skip


@pytest.mark.parametrize("has_mask", [True, False])
def test_inputs_have_any_format_and_masks_may_be_missing(has_mask: bool) -> None:
    torch.manual_seed(0)
    model, samples = _Mixed(), _mixed_samples(has_mask=has_mask)
    plain, plan = copy.deepcopy(model), chain_of(problem_of("sequential"), devices=("d0",))
    one_stage = plan.stages[0].changed(last_layer=0)
    plan = plan.changed(model_fingerprint="", num_layers=1, stages=(one_stage,))
    program = replace(
        make(), data=samples, parameter_groups=None, schedule=None, max_gradient_norm=None
    )
    found = PipelineTrainer(model, plan, program).fit(num_steps=3)
    optimizer, expected = torch.optim.AdamW(plain.parameters(), lr=RATE), []
    batch = collate_samples([{k: v for k, v in s.items() if v is not None} for s in samples])
    assert all(batch[name].dtype == FORMATS[name] for name in batch if name != "labels")
    target = batch.pop("labels")
    batch["scale"] = batch["scale"].float()
    for _ in range(3):
        loss = mean_loss(plain(**batch), target)
        torch.autograd.backward(loss)
        optimizer.step()
        optimizer.zero_grad()
        expected.append(float(loss.detach()))
    assert found == pytest.approx(expected, abs=1e-5)


def test_after_an_empty_data_set_the_trainer_goes_on() -> None:
    trainer = _trainer()
    assert len(trainer.fit(PointData(), num_steps=1)) == 1
    for empty in (trainer.evaluate, partial(trainer.fit, num_steps=9)):
        with pytest.raises(HeterpsError, match="data: is empty"):
            empty([])
    assert len(trainer.fit(PointData(), num_steps=2)) == 1


def test_data_that_the_model_does_not_take_is_one_clear_error() -> None:
    trainer = _trainer()
    with pytest.raises(HeterpsError, match="fit: there is no data"):
        trainer.fit(num_steps=1)
    for _ in range(2):  # nobody failed for good
        with pytest.raises(HeterpsError, match="data: is empty"):
            trainer.fit([], num_steps=1)
    with pytest.raises(HeterpsError, match="a sample must be inputs and target"):
        trainer.fit([1.0, 2.0], num_steps=1)
