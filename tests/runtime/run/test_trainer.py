"""One rank alone, in this process: training, migration in place, the results that it leaves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.run.trainer import Trainer
from heterps_runtime.run.verify import max_difference, reference_losses
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.build import build_stages
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.state.layout import VALUE
from heterps_runtime.state.migrate import held_by, migrate
from heterps_runtime.transport.communication import Communicator
from tests.runtime.small_runs import plan_of, problem_of


@pytest.fixture
def communicator(tmp_path: Path) -> Iterator[Communicator]:
    """A group of one process."""
    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield Communicator()
    dist.destroy_process_group()


def _specification(cut: int, model: str = "gpt2") -> RunSpecification:
    """Two stages on one device."""
    problem = problem_of(model)
    plan = plan_of(problem, {"a": (0, cut - 1, "d0"), "b": (cut, -1, "d0")})
    schedule = build_schedule(problem, plan)
    return build_specification(problem, plan, schedule, RunSettings(steps=3), devices=("d0",))


@pytest.mark.slow
def test_two_stages_on_one_device_train_like_one(
    communicator: Communicator, tmp_path: Path
) -> None:
    specification, lines = _specification(cut=2), list[dict[str, Any]]()
    Trainer(specification, tmp_path, communicator, on_step=lines.append).run()
    losses = [line["loss"] for line in lines if "loss" in line]
    assert max_difference(losses, reference_losses(specification)) < 1e-5
    result = json.loads((tmp_path / "result-0.json").read_text())
    assert [stage["stage"] for stage in result["stages"]] == ["a", "b"]
    assert [kind for kind, *_ in result["trace"]].count("forward") == 8


def test_tied_parameter_on_one_device_is_one_parameter(communicator: Communicator) -> None:
    modules = build_stages(_specification(cut=2), "d0")
    (tied,) = modules["a"].tied_names()
    shared = [module.parameters_by_name()[tied] for module in modules.values()]
    assert shared[0] is shared[1]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:batch normalisation")
@pytest.mark.parametrize("model", ["gpt2", "resnet"])
def test_what_stays_on_its_rank_is_not_moved(
    communicator: Communicator, tmp_path: Path, model: str
) -> None:
    trainer = Trainer(_specification(cut=2, model=model), tmp_path, communicator)
    trainer.run()
    old = trainer.owned
    before = held_by(old).tensors
    specification = _specification(cut=3, model=model)
    modules = build_stages(specification, "d0")
    new = OwnedStages(specification, modules, communicator)
    assert migrate(old, new, communicator).bytes_received == 0
    for name, parameter in old.parameters.items():
        assert new.parameters[name].data_ptr() == parameter.data_ptr()
    buffers = {n: b for module in modules.values() for n, b in module.buffers_by_name().items()}
    assert all(bool((buffer == before[name][VALUE]).all()) for name, buffer in buffers.items())
    after = held_by(new).tensors
    assert set(after) == set(before)
    assert all(after[n]["exp_avg"] is before[n]["exp_avg"] for n in new.parameters)
