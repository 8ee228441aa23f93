"""Checkpoints of one rank in this process: any plan, or no plan at all, goes on from them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.execution.data_feed import micro_batches
from heterps_runtime.models import losses
from heterps_runtime.models.build import arguments, build_module
from heterps_runtime.models.recording import select_output
from heterps_runtime.run.trainer import Trainer
from heterps_runtime.run.verify import reference_losses
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.build import build_stages
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.state.checkpoint import load_state_dict, optimizer_state_dict, restore
from heterps_runtime.state.checkpoint_files import complete_checkpoints
from heterps_runtime.transport.communication import Communicator
from tests.runtime.live_bytes import LiveBytes
from tests.runtime.small_runs import plan_of, problem_of

STEPS, SAVED = 4, 2


@pytest.fixture
def communicator(tmp_path: Path) -> Iterator[Communicator]:
    """A group of one process."""
    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield Communicator()
    dist.destroy_process_group()


def _specification(model: str, cut: int, folder: Path, **update: Any) -> RunSpecification:
    """Two stages on one device; saves behind every second step."""
    problem = problem_of(model)
    plan = plan_of(problem, {"a": (0, cut - 1, "d0"), "b": (cut, -1, "d0")})
    schedule = build_schedule(problem, plan)
    built = build_specification(problem, plan, schedule, RunSettings(steps=STEPS), devices=("d0",))
    settings = CheckpointSettings(folder=str(folder), every=SAVED, keep=2)
    return built.changed(checkpoint=settings, **update)


def _train(specification: RunSpecification, folder: Path, communicator: Communicator) -> list[Any]:
    lines: list[dict[str, Any]] = []
    Trainer(specification, folder, communicator, on_step=lines.append).run()
    return lines


def _losses(lines: list[Any]) -> list[float]:
    return [line["loss"] for line in lines if "loss" in line]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:batch normalisation")
@pytest.mark.parametrize("model", ["gpt2", "resnet", "sequential"])
def test_run_goes_on_under_other_cuts_as_if_it_had_not_stopped(
    communicator: Communicator, tmp_path: Path, model: str
) -> None:
    folder = tmp_path / "checkpoints"
    lines = _train(_specification(model, 2, folder), tmp_path, communicator)
    saved = [line["checkpoint"] for line in lines if "checkpoint" in line]
    assert saved == [str(path) for path in complete_checkpoints(folder)]
    again = _specification(
        model, 3, tmp_path / "later", first_step=SAVED, resume_from=saved[0], seed=0
    )
    resumed = _train(again, tmp_path, communicator)
    assert _losses(resumed) == _losses(lines)[SAVED:]
    assert [line["step"] for line in resumed if "loss" in line] == [2, 3]
    first, second = (load_state_dict(path) for path in (folder, tmp_path / "later"))
    assert first.model.keys() == second.model.keys()
    assert all(torch.equal(first.model[name], second.model[name]) for name in first.model)
    reference = reference_losses(again)
    assert reference == pytest.approx(_losses(resumed), abs=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("model", ["gpt2", "sequential"])
def test_plain_torch_goes_on_from_a_checkpoint(
    communicator: Communicator, tmp_path: Path, model: str
) -> None:
    folder = tmp_path / "checkpoints"
    specification = _specification(model, 2, folder)
    lines = _train(specification, tmp_path, communicator)
    source, job = specification.profile.source, specification.plan.job
    assert source is not None
    state = load_state_dict(folder / f"step-{SAVED:06d}")
    assert state.document.step == SAVED
    module = build_module(source, device="cpu")
    module.load_state_dict(state.model)
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-4)
    optimizer.load_state_dict(optimizer_state_dict(state, module, optimizer))
    for step in range(SAVED, STEPS):
        batches = micro_batches(specification, step, range(job.num_micro_batches))
        total = 0.0
        for inputs, target in batches.values():
            positional, named = arguments(source, inputs)
            output = select_output(module(*positional, **named))
            loss = losses.loss_sum(source, output, target)
            loss = loss / job.global_batch_size
            loss.backward()  # type: ignore[no-untyped-call]
            total += loss.item()
        optimizer.step()
        optimizer.zero_grad()
        assert total == pytest.approx(_losses(lines)[step], abs=1e-5)


@pytest.fixture
def saved(communicator: Communicator, tmp_path: Path) -> Path:
    """A complete checkpoint."""
    specification = _specification("sequential", 2, tmp_path / "checkpoints", num_steps=1)
    _train(specification, tmp_path, communicator)
    return tmp_path / "checkpoints" / "step-000001"


def test_rank_that_loads_holds_its_part_and_one_tensor(
    saved: Path, communicator: Communicator
) -> None:
    specification = _specification("sequential", 2, saved.parent, resume_from=str(saved))
    modules = build_stages(specification, "d0")
    owned = OwnedStages(specification, {"b": modules["b"]}, communicator)
    with LiveBytes() as live:
        restore(str(saved), owned.parameters, [], owned.optimizer)
    own = [*owned.parameters.values(), *owned.optimizer_tensors()]
    sizes = [tensor.nbytes for tensor in own]
    assert sum(sizes) <= live.most <= sum(sizes) + max(sizes)
    assert len(own) == 4 * len(owned.parameters)


def _flip_a_bit(file: Path, weight: torch.Tensor) -> None:
    content = bytearray(file.read_bytes())
    content[content.index(weight.numpy().tobytes())] ^= 1
    file.write_bytes(content)


def test_damage_is_one_clear_message(saved: Path) -> None:
    (shard,) = saved.glob("*.safetensors")
    weight = load_state_dict(saved).model["0.weight"]
    whole = shard.read_bytes()
    _flip_a_bit(shard, weight)
    with pytest.raises(HeterpsError, match=r"damaged \(the checksum of model.0.weight differs"):
        load_state_dict(saved)
    shard.write_bytes(whole[: len(whole) // 2])
    with pytest.raises(HeterpsError, match=r"damaged \(tensors-0.safetensors has \d+ bytes, and"):
        load_state_dict(saved)
    shard.unlink()
    with pytest.raises(HeterpsError, match=rf"{shard.name}: No such file or directory"):
        load_state_dict(saved)
    (saved / "checksums.txt").write_bytes(b"nothing")
    with pytest.raises(HeterpsError, match=r"damaged \(checksums.txt: line 1\)"):
        load_state_dict(saved)


def test_tensors_of_another_shape_are_refused(
    saved: Path, communicator: Communicator, tmp_path: Path
) -> None:
    other = _specification("in_place", 2, tmp_path / "other", resume_from=str(saved))
    with pytest.raises(HeterpsError, match=r"model\.\S+ is .* and the model's is|has no tensor"):
        _train(other, tmp_path, communicator)
