"""Recovery of states: the nearest source of each tensor, one step for all, nothing lost."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.process.template import Template
from heterps_runtime.run.launcher import worker_environment
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.state.checkpoint import counts_elsewhere, load_state_dict, pieces_of
from heterps_runtime.state.checkpoint_tiers import CheckpointTiers, SavedStep
from heterps_runtime.state.layout import HeldState, state_bytes
from heterps_runtime.state.migrate import held_by
from heterps_runtime.state.remote_storage import RemoteStorage
from heterps_runtime.state.remote_upload import upload_checkpoint
from tests.runtime.group_plans import grouped, sharing
from tests.runtime.local_states import (
    Back,
    assert_equal,
    loaded,
    losses_from,
    recovered,
    save,
    saved_tensors,
    specification_of,
    trained,
)
from tests.runtime.recovery_script import SAVED
from tests.runtime.small_runs import DEVICES, chain_of, plan_of, problem_of


def _survivors(run: LocalRun, *lost: str) -> dict[str, tuple[HeldState, int]]:
    return {d: (held_by(o), run.num_steps) for d, o in run.owned.items() if d not in lost}


def _settings(folder: Path, remote: str | None = None) -> CheckpointTiers:
    return CheckpointTiers(CheckpointSettings(folder=str(folder), remote=remote))


def _total(found: Mapping[str, Back]) -> dict[str, int]:
    """Bytes by source that came to all devices; sources that gave nothing are left out."""
    total: dict[str, int] = {}
    for back in found.values():
        for source, size in back.recovered.bytes_by_source.items():
            total[source] = total.get(source, 0) + size
    return {source: size for source, size in total.items() if size}


def _owned(found: Mapping[str, Back]) -> dict[str, OwnedStages]:
    return {device: back.owned for device, back in found.items()}


def _two_replicas(model: str) -> tuple[Problem, Plan]:
    """Two pipelines of two stages each, with their own cuts."""
    problem = problem_of(model)
    plan = plan_of(
        problem,
        {"a": (0, 1, "d0"), "b": (2, -1, "d1"), "c": (0, 2, "d2"), "d": (3, -1, "d3")},
        {("a", "b"): (0, 1), ("c", "d"): (2, 3)},
    )
    return problem, plan


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:batch normalisation")
@pytest.mark.parametrize(
    ("model", "lost"), [("gpt2", "d0"), ("gpt2", "d1"), ("resnet", "d0"), ("dropping", "d3")]
)
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
        before = held_by(run.owned[device]).tensors
        new = {n: s for n, s in held_by(wanted[device]).tensors.items() if n not in before}
        assert sources["replica"] == state_bytes(new)
        assert sum(sources.values()) == sources["replica"]
    owned = _owned(found)
    assert_equal(owned, wanted, with_statistics=model != "resnet")


@pytest.mark.slow
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
        tiers[device].hold(2, kept[device], pieces_of(run.owned[device], kept[device]))
    found = recovered(_survivors(run, "d2"), specification, tiers.__getitem__)
    assert {back.recovered.step for back in found.values()} == {2}
    owned = _owned(found)
    assert_equal(owned, loaded(specification, checkpoint))
    # d0 and d2 have left no copies in memory.
    assert _total(found).keys() == {"snapshot", "local"}
    assert losses_from(owned, specification, 2, 3) == pytest.approx(expected, abs=1e-6)


class _Broken:
    """Three devices, of which the last is lost after step 4; checkpoints after steps 1 and 3."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.remote = f"file://{folder / 'remote'}"
        self.problem = problem_of("sequential")
        self.run = trained(self.problem, chain_of(self.problem, 2, 4, devices=DEVICES[:3]), 1)
        self.paths = {1: save(self.run, folder, 1)}
        for _ in range(2):
            self.run.step()
        self.paths[3] = save(self.run, folder, 3)
        for path in self.paths.values():
            upload_checkpoint(RemoteStorage(self.remote), path)
        self.run.step()
        self.specification = specification_of(
            self.problem, chain_of(self.problem, 3, devices=DEVICES[:2])
        )

    def recovered(self, remote: bool = False) -> dict[str, Back]:
        """By the two that are left."""
        url = self.remote if remote else None
        held = _survivors(self.run, "d2")
        return recovered(held, self.specification, lambda device: _settings(self.folder, url))

    def shard(self, step: int) -> Path:
        """The file of tensors."""
        (found,) = self.paths[step].glob("*.safetensors")
        return found


@pytest.fixture
def broken(tmp_path: Path) -> _Broken:
    return _Broken(tmp_path)


def _flip(file: Path) -> None:
    """One bit in the weight of the last layer, which only the lost device held."""
    weight = load_state_dict(file.parent).model["6.weight"]
    content = bytearray(file.read_bytes())
    content[content.index(weight.numpy().tobytes())] ^= 1
    file.write_bytes(content)


def _truncate(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:100])


DAMAGES = pytest.mark.parametrize("damage", [_flip, _truncate, Path.unlink])


def _sums(file: Path) -> None:
    (file.parent / "checksums.txt").write_bytes(b"nothing")


@pytest.mark.slow
@DAMAGES
def test_what_is_damaged_comes_from_the_remote_storage(
    broken: _Broken, damage: Callable[[Path], None]
) -> None:
    damage(broken.shard(3))
    found = broken.recovered(remote=True)
    assert {back.recovered.step for back in found.values()} == {3}
    assert "remote" in _total(found)
    remarks = [remark for back in found.values() for remark in back.recovered.remarks]
    assert any("step-000003: the checkpoint is damaged" in remark for remark in remarks)
    wanted = loaded(broken.specification, f"{broken.remote}/step-000003")
    assert_equal(_owned(found), wanted)


@pytest.mark.parametrize("damage", [_flip, _truncate, Path.unlink, _sums])
def test_the_next_older_step_is_taken_where_nothing_else_is_whole(
    broken: _Broken, damage: Callable[[Path], None]
) -> None:
    damage(broken.shard(3))
    found = broken.recovered()
    assert {back.recovered.step for back in found.values()} == {1}
    remarks = [remark for back in found.values() for remark in back.recovered.remarks]
    assert any("step-000003: the checkpoint is damaged" in remark for remark in remarks)
    assert_equal(_owned(found), loaded(broken.specification, broken.paths[1]))


def test_where_no_checkpoint_is_whole_training_begins_again(broken: _Broken) -> None:
    for step in broken.paths:
        _flip(broken.shard(step))
    found = broken.recovered()
    assert {back.recovered.step for back in found.values()} == {0}
    # What was read in vain counts, too.
    assert _total(found).keys() == {"local", "initialisation"}
    fresh = LocalRun(broken.specification)
    assert_equal(_owned(found), fresh.owned)
    assert not any(own.optimizer_tensors() for own in _owned(found).values())


def test_run_that_began_from_a_checkpoint_cannot_begin_again(broken: _Broken) -> None:
    _flip(broken.shard(1))
    _flip(broken.shard(3))
    update = {"resume_from": str(broken.paths[1]), "first_step": 1}
    broken.specification = broken.specification.changed(**update)
    with pytest.raises(HeterpsError, match=r"no checkpoint is whole \(there are some after steps"):
        broken.recovered()


def test_only_the_remote_storage_is_left(broken: _Broken) -> None:
    for path in broken.paths.values():
        shutil.rmtree(path)
    found = broken.recovered(remote=True)
    assert {back.recovered.step for back in found.values()} == {3}
    assert _total(found).keys() == {"remote"}


def test_remote_storage_out_of_reach_is_a_remark(broken: _Broken) -> None:
    broken.remote = "nonsense://there"
    found = broken.recovered(remote=True)
    assert {back.recovered.step for back in found.values()} == {3}
    remarks = {remark for back in found.values() for remark in back.recovered.remarks}
    assert remarks == {"nonsense://there: Protocol not known: nonsense"}


def test_held_state_is_as_it_was_where_a_recovery_fails(broken: _Broken) -> None:
    before = {
        name: {key: tensor.clone() for key, tensor in tensors.items()}
        for name, tensors in held_by(broken.run.owned["d0"]).tensors.items()
    }

    def lose_connection(device: str) -> CheckpointTiers:
        tiers = _settings(broken.folder)
        if device == "d1":
            tiers.saved_steps = _lost  # type: ignore[method-assign]
        return tiers

    with pytest.raises(RuntimeError, match="Connection closed"):
        recovered(_survivors(broken.run, "d2"), broken.specification, lose_connection)
    after = held_by(broken.run.owned["d0"]).tensors
    assert after.keys() == before.keys()
    for name, tensors in after.items():
        assert all(torch.equal(tensor, before[name][key]) for key, tensor in tensors.items())
    assert {back.recovered.step for back in broken.recovered().values()} == {3}


def _lost() -> tuple[list[SavedStep], list[str]]:
    raise RuntimeError("Connection closed by peer")


def _groups(problem: Problem) -> dict[str, Plan]:
    """Two replicas in uneven groups with and without shared state; and no replicas."""
    two = {"a": DEVICES[:2], "b": DEVICES[2:]}
    replicas = grouped(problem, two, (0.25, 0.75), are_replicas=True)
    return {"replicas": replicas, "shared": sharing(replicas), "chain": grouped(problem, two)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "lost", "sources"),
    [
        ("replicas", "d1", {"replica"}),
        # Each slice is alive in the other group.
        ("replicas", "d1 d2", {"replica"}),
        ("shared", "d1", {"replica", "snapshot", "local"}),
        ("chain", "d1", {"replica", "local"}),
    ],
)
def test_slices_that_nobody_alive_has_are_read(
    before: str, lost: str, sources: set[str], tmp_path: Path
) -> None:
    problem = problem_of("llama", global_batch_size=8)
    run = trained(problem, _groups(problem)[before], 2)
    checkpoint = save(run, tmp_path, 2)
    left = [device for device in DEVICES if device not in lost.split()]
    groups = {"a": left[:2], "b": left[2:]} if len(left) > 2 else {"a": left[::-1]}
    plan = grouped(problem, groups, (0.75, 0.25))
    specification = specification_of(problem, plan)
    held = _survivors(run, *lost.split())
    found = recovered(held, specification, lambda device: _settings(tmp_path))
    assert {back.recovered.step for back in found.values()} == {2}
    assert_equal(_owned(found), loaded(specification, checkpoint))
    assert _total(found).keys() <= sources
    if "local" in sources:
        # Not a whole state: the rest is alive.
        every = trained(problem, chain_of(problem, devices=("d0",)), 1)
        assert 0 < _total(found)["local"] < 0.8 * state_bytes(held_by(every.owned["d0"]).tensors)


@pytest.mark.slow
@pytest.mark.parametrize("before", ["replicas", "shared", "chain"])
def test_memory_copies_of_slices_are_gone_on_from(before: str, tmp_path: Path) -> None:
    """Those of the ranks that have written counts of steps are lost."""
    problem = problem_of("llama", global_batch_size=8)
    run = trained(problem, _groups(problem)[before], 2)
    checkpoint = save(run, tmp_path, 2)
    tiers = {device: _settings(tmp_path) for device in DEVICES}
    for device, tensors in saved_tensors(run.owned).items():
        kept = {**tensors, **counts_elsewhere(run.owned[device])}
        tiers[device].hold(2, kept, pieces_of(run.owned[device], tensors))
    run.step()
    specification = specification_of(problem, grouped(problem, {"a": ("d1", "d3")}, (0.25, 0.75)))
    found = recovered(_survivors(run, "d0", "d2"), specification, tiers.__getitem__)
    assert {back.recovered.step for back in found.values()} == {2}
    assert_equal(_owned(found), loaded(specification, checkpoint))
    assert _total(found).keys() == {"snapshot", "local"}


@pytest.mark.slow
def test_parts_that_were_not_handed_out_count_where_they_were_stepped() -> None:
    """A rank is lost between the update of the others and the gathering that follows it."""
    problem = problem_of("llama", global_batch_size=8)
    run = trained(problem, sharing(_groups(problem)["replicas"]), 2)
    expected = {
        device: {name: p.detach().clone() for name, p in owned.parameters.items()}
        for device, owned in run.owned.items()
    }
    for owned in run.owned.values():
        owned.apply_gradients()  # there are none: nothing changes
        assert owned.not_handed_out == owned.parameters.keys()
        for name in owned.not_handed_out:
            kept = owned.stepped[name].detach().clone()
            owned.parameters[name].data.zero_()
            owned.stepped[name].data.copy_(kept)
    found = recovered(_survivors(run), run.specification)
    for device, back in found.items():
        for name, parameter in back.owned.parameters.items():
            assert torch.equal(parameter, expected[device][name])


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_joining_device_gets_all_from_replicas_and_idle_ones_nothing(dtype: str) -> None:
    problem = problem_of("gpt2", dtype=dtype, optimizer="sgd-momentum")
    run = trained(problem, chain_of(problem, 2, 4, devices=DEVICES[:3]), 2)
    plan = plan_of(
        problem,
        {"a": (0, -1, "d1"), "b": (0, 1, "d3"), "c": (2, -1, "d2")},
        {("a",): (0, 1), ("b", "c"): (2, 3)},
    )
    specification = specification_of(problem, plan, DEVICES)
    found = recovered(_survivors(run), specification)
    assert {back.recovered.step for back in found.values()} == {2}
    assert sum(found["d0"].recovered.bytes_by_source.values()) == 0
    assert not found["d0"].owned.modules
    d3 = found["d3"].recovered.bytes_by_source["replica"]
    assert d3 == state_bytes(held_by(found["d3"].owned).tensors) > 0
    found_losses = losses_from(_owned(found), specification, 2)
    # The stages that stayed are those of the run itself.
    expected = [run.step() for _ in range(2)]
    limit = 1e-5 if dtype == "float32" else 2e-3
    assert found_losses == pytest.approx(expected, abs=limit)


@pytest.mark.slow
def test_lost_rank_ends_a_recovery_at_once_and_the_others_begin_again(tmp_path: Path) -> None:
    log, environment = tmp_path / "log", worker_environment(1)
    with Template("tests.runtime.recovery_script", environment, log) as template:
        ranks = [template.fork([str(tmp_path), str(rank)], environment, log) for rank in range(3)]
        assert [process.wait(timeout=240) for process in ranks] == [0, 0, 9], log.read_text()
    results = [json.loads((tmp_path / f"{rank}.json").read_text()) for rank in range(2)]
    names: list[str] = []
    for result in results:
        # Both ranks hear of it long before the limit of the group.
        assert result["is_lost_rank"], result["message"]
        assert result["step"] == SAVED
        assert result["is_equal"]
        assert result["bytes"]["local"] > 0
        names += result["names"]
    assert len(names) == 8
