"""States of several ranks in this process: trained, saved, moved, recovered, trained on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.elastic.state_recovery import Recovered, Recovery
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.execution.local_turns import (
    LetterBox,
    LocalGatherer,
    LocalGroupSums,
    LocalMessenger,
    take_turns,
)
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.build import build_stages
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.stages.start_values import Blank
from heterps_runtime.state.checkpoint import buffers_of, owned_tensors, pieces_of, restore_stages
from heterps_runtime.state.checkpoint_files import (
    CheckpointDocument,
    checkpoint_path,
    layer_sizes,
    publish,
    unfinished_path,
)
from heterps_runtime.state.checkpoint_storage import write_tensors
from heterps_runtime.state.checkpoint_tiers import CheckpointTiers
from heterps_runtime.state.checkpointer import buffers_saved_by
from heterps_runtime.state.layout import HeldState
from heterps_runtime.state.migrate import Migration, held_by, load_optimizer_state, migrate_among
from heterps_runtime.state.transfer import Peers

T = TypeVar("T")
Owned = dict[str, OwnedStages]  # by device


def specification_of(
    problem: Problem, plan: Plan, devices: Sequence[str] | None = None
) -> RunSpecification:
    """Of a run whose ranks are `devices`; by default those of the plan."""
    schedule = build_schedule(problem, plan)
    devices = devices or plan.devices
    return build_specification(problem, plan, schedule, RunSettings(steps=100), devices=devices)


def trained(
    problem: Problem, plan: Plan, steps: int, devices: Sequence[str] | None = None
) -> LocalRun:
    """After some steps."""
    run = LocalRun(specification_of(problem, plan, devices))
    for _ in range(steps):
        run.step()
    return run


def saved_tensors(owned: Mapping[str, OwnedStages]) -> dict[str, dict[str, Tensor]]:
    """What each device would save, by key in the checkpoint."""
    held = [(list(buffers_of(own)), own.group) for own in owned.values()]
    return {
        device: owned_tensors(own, buffers_saved_by(rank, held, own.slices))
        for rank, (device, own) in enumerate(owned.items())
    }


def save(run: LocalRun, folder: Path, step: int, keep: int = 5) -> Path:
    """Writes a complete checkpoint of all devices, one after the other."""
    return save_stages(run.owned, run.specification, folder, step, keep)


def save_stages(
    owned: Mapping[str, OwnedStages],
    specification: RunSpecification,
    folder: Path,
    step: int,
    keep: int = 5,
) -> Path:
    """The same of stages that are in no run; without pieces as the first of the devices."""
    path, saved = unfinished_path(folder, step), saved_tensors(owned)
    pieces = [pieces_of(owned[device], tensors) for device, tensors in saved.items()]
    if any(pieces):
        for rank, (tensors, own) in enumerate(zip(saved.values(), pieces, strict=True)):
            write_tensors(path, tensors, None, rank, own)
    else:
        whole = {key: tensor for tensors in saved.values() for key, tensor in tensors.items()}
        write_tensors(path, whole, group=None, rank=0)
    document = CheckpointDocument(
        step=step,
        seed=specification.seed,
        learning_rate=None,
        plan=specification.plan,
        num_ranks=len(owned) if any(pieces) else 1,
        layers=layer_sizes(specification.profile),
    )
    publish(folder, document, keep)
    return checkpoint_path(folder, step)


def loaded(specification: RunSpecification, checkpoint: Path | str) -> Owned:
    """Fresh stages of all devices, filled from a checkpoint."""

    def load(device: str, peers: Peers) -> OwnedStages:
        owned = fresh(specification, device, peers)
        restore_stages(str(checkpoint), owned)
        return owned

    return together(specification, load)


def fresh(specification: RunSpecification, device: str, peers: Peers) -> OwnedStages:
    """Stages without values."""
    rank = specification.ranks[device]
    groups = [ranks for ranks in specification.group_ranks if rank in ranks]
    sums = LocalGroupSums(LocalMessenger(rank, LetterBox(0)), groups[0]) if groups else None
    modules = build_stages(specification, device, Blank(), sums=sums)
    return OwnedStages(specification, modules, peers.gatherer)


class Moved(NamedTuple):
    """What a device holds after a move."""

    owned: OwnedStages
    migration: Migration


def migrated(old: Mapping[str, OwnedStages], specification: RunSpecification) -> dict[str, Moved]:
    """All devices move to a plan."""

    def move(device: str, peers: Peers) -> Moved:
        owned = fresh(specification, device, peers)
        return Moved(owned, migrate_among(peers, old[device], owned))

    return together(specification, move)


class Back(NamedTuple):
    """What a device holds after a recovery."""

    owned: OwnedStages
    recovered: Recovered


def recovered(
    held: Mapping[str, tuple[HeldState, int]],
    specification: RunSpecification,
    tiers: Callable[[str], CheckpointTiers] = lambda device: CheckpointTiers(None),
) -> dict[str, Back]:
    """All devices of a specification recover together.

    Args:
        held: State and its steps of the devices that hold any.
        specification: To come.
        tiers: Of each device.
    """

    def recover(device: str, peers: Peers) -> Back:
        owned = fresh(specification, device, peers)
        state, step = held.get(device, (HeldState({}), None))
        return Back(owned, Recovery(peers, state, step, specification, owned, tiers(device)).run())

    return together(specification, recover)


def together(specification: RunSpecification, work: Callable[[str, Peers], T]) -> dict[str, T]:
    """Runs something on all devices at once."""
    box = LetterBox(len(specification.devices))
    return take_turns(
        {
            device: partial(
                work, device, Peers(LocalGatherer(rank, box), LocalMessenger(rank, box))
            )
            for rank, device in enumerate(specification.devices)
        }
    )


def losses_from(
    owned: Mapping[str, OwnedStages], specification: RunSpecification, step: int, num_steps: int = 2
) -> list[float]:
    """Trains on with copies of these states."""
    run = LocalRun(specification.changed(first_step=step))
    run.num_steps = step
    for device, own in run.owned.items():
        state = held_by(owned[device]).tensors
        for name, parameter in own.parameters.items():
            parameter.data.copy_(state[name]["value"])
        for name, buffer in buffers_of(own).items():
            buffer.copy_(state[name]["value"])
        copies = {
            name: {key: tensor.clone() for key, tensor in tensors.items() if key != "value"}
            for name, tensors in state.items()
        }
        load_optimizer_state(own, copies)
    return [run.step() for _ in range(num_steps)]


def assert_equal(
    found: Mapping[str, OwnedStages],
    expected: Mapping[str, OwnedStages],
    *,
    with_statistics: bool = True,
) -> None:
    """All tensors of all devices, bit by bit.

    Args:
        found: By device.
        expected: By device.
        with_statistics: Running statistics, too, which replicas have of their own.
    """
    assert found.keys() == expected.keys()
    for device, own in found.items():
        state, wanted = held_by(own).tensors, held_by(expected[device]).tensors
        assert state.keys() == wanted.keys()
        for name in state if with_statistics else own.parameters:
            tensors = state[name]
            assert tensors.keys() == wanted[name].keys(), name
            assert all(torch.equal(t, wanted[name][key]) for key, t in tensors.items()), name
