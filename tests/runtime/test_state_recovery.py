"""Recovery of states: the nearest source of each tensor, one step for all, nothing lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from heterps_configs.plan import Plan
from heterps_envs.problem import Problem
from heterps_runtime.checkpoint_files import CheckpointSettings
from heterps_runtime.checkpoint_tiers import CheckpointTiers
from heterps_runtime.local_run import LocalRun
from heterps_runtime.migrate import state_of
from heterps_runtime.state_layout import State, state_bytes
from tests.runtime.local_states import (
    assert_equal,
    loaded,
    losses_from,
    recovered,
    save,
    saved_tensors,
    specification_of,
    trained,
)
from tests.runtime.small_runs import chain_of, plan_of, problem_of

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")


def _survivors(run: LocalRun, *lost: str) -> dict[str, tuple[State, int]]:
    return {d: (state_of(o), run.num_steps) for d, o in run.owned.items() if d not in lost}


def _settings(folder: Path) -> CheckpointTiers:
    return CheckpointTiers(CheckpointSettings(folder=str(folder)))


def _two_replicas(model: str) -> tuple[Problem, Plan]:
    """Two pipelines of two stages each, with their own cuts."""
    problem = problem_of(model)
    plan = plan_of(
        problem,
        {"a": (0, 1, "d0"), "b": (2, -1, "d1"), "c": (0, 2, "d2"), "d": (3, -1, "d3")},
        {("a", "b"): (0, 1), ("c", "d"): (2, 3)},
    )
    return problem, plan


@pytest.mark.filterwarnings("ignore:batch normalisation")
@pytest.mark.parametrize("model", ["gpt2", "resnet", "dropping"])
@pytest.mark.parametrize("lost", ["d0", "d1", "d3"])
def test_no_checkpoint_is_read_where_a_replica_is_alive(
    model: str, lost: str, tmp_path: Path
) -> None:
    problem, plan = _two_replicas(model)
    run = trained(problem, plan, 3)
    checkpoint = save(run, tmp_path, 3)
    left = [d for d in plan.devices if d != lost]
    specification = specification_of(problem, chain_of(problem, 2, 3, devices=left))
    found = recovered(_survivors(run, lost), specification, lambda device: _settings(tmp_path))
    wanted = loaded(specification, checkpoint)
    assert {back.recovered.step for back in found.values()} == {3}
    for device, back in found.items():
        sources = back.recovered.bytes_by_source
        before = state_of(run.owned[device])
        new = {n: s for n, s in state_of(wanted[device]).items() if n not in before}
        assert sources["replica"] == state_bytes(new)
        assert sum(sources.values()) == sources["replica"]
    owned = {device: back.owned for device, back in found.items()}
    assert_equal(owned, wanted, with_statistics=model != "resnet")


@pytest.mark.parametrize(("model", "cuts"), [("gpt2", (2, 3, 4)), ("frozen_middle", (2, 4, 6))])
def test_all_go_back_together_where_nobody_alive_holds_a_layer(
    model: str, cuts: tuple[int, ...], tmp_path: Path
) -> None:
    problem = problem_of(model)
    run = trained(problem, chain_of(problem, *cuts), 2)
    checkpoint = save(run, tmp_path, 2)
    kept = saved_tensors(run.owned)
    expected = [run.step() for _ in range(3)]
    specification = specification_of(problem, chain_of(problem, 2, 3, devices=("d3", "d0", "d1")))
    tiers = {device: _settings(tmp_path) for device in specification.devices}
    for device in ("d1", "d3"):
        tiers[device].hold(2, kept[device])
    found = recovered(_survivors(run, "d2"), specification, tiers.__getitem__)
    assert {back.recovered.step for back in found.values()} == {2}
    owned = {device: back.owned for device, back in found.items()}
    assert_equal(owned, loaded(specification, checkpoint))
    total: dict[str, int] = {}
    for back in found.values():
        for source, size in back.recovered.bytes_by_source.items():
            total[source] = total.get(source, 0) + size
    assert total["replica"] == total["remote"] == total["initialisation"] == 0
    assert total["snapshot"] > 0
    assert total["local"] > 0
    assert losses_from(owned, specification, 2, 3) == pytest.approx(expected, abs=1e-6)
