"""The loop of one rank: what a generation does that begins when all steps are done."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.elastic.holding import Holding
from heterps_runtime.elastic.trainer import ElasticTrainer
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.state.checkpoint import load_state_dict
from heterps_runtime.state.checkpoint_tiers import CheckpointTiers
from heterps_runtime.transport.communication import Communicator
from tests.runtime.small_runs import plan_of, problem_of

STEPS = 3


@pytest.fixture
def communicator(tmp_path: Path) -> Iterator[Communicator]:
    """A group of one process."""
    store = f"file://{tmp_path / 'store'}"
    dist.init_process_group("gloo", init_method=store, rank=0, world_size=1)
    yield Communicator()
    dist.destroy_process_group()


def _specification(folder: Path) -> RunSpecification:
    """One stage; saves behind the last step alone."""
    problem = problem_of("sequential")
    plan = plan_of(problem, {"a": (0, -1, "d0")})
    schedule = build_schedule(problem, plan)
    built = build_specification(problem, plan, schedule, RunSettings(steps=STEPS), devices=("d0",))
    return built.changed(checkpoint=CheckpointSettings(folder=str(folder), every=0))


@pytest.mark.slow
def test_a_generation_that_begins_after_the_last_step_saves_what_the_one_before_could_not(
    communicator: Communicator, tmp_path: Path
) -> None:
    """A rank that is lost between the last step and the end of its checkpoint takes none along."""
    folder = tmp_path / "checkpoints"
    specification, holding = _specification(folder), Holding()
    tiers = CheckpointTiers(specification.checkpoint)

    def trainer(generation: int) -> ElasticTrainer:
        return ElasticTrainer(
            specification.changed(generation=generation),
            tmp_path,
            communicator,
            lambda line: None,
            holding=holding,
            tiers=tiers,
            is_ending=lambda: False,
        )

    folder.write_text("no folder")
    with pytest.raises(HeterpsError, match="after step 3 cannot be written"):
        trainer(0).train()
    folder.unlink()
    assert trainer(1).train()
    state = load_state_dict(folder)
    assert state.document.step == holding.step == STEPS
    for name, tensors in holding.state.tensors.items():
        assert tensors["value"].equal(state.model[name])
