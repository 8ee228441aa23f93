"""A whole run in one process: the devices of a plan take turns, messages change hands locally.

It executes the very action lists, without processes, emulation or waiting. For checks of what does
not depend on time: losses, gradients, memory.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from heterps_configs.plan import Plan
from heterps_envs.actions import Action, Schedule
from heterps_envs.problem import Problem
from heterps_envs.schedule import build_schedule
from heterps_runtime.batches import Batch, micro_batches
from heterps_runtime.emulation import HostClock
from heterps_runtime.executor import ActionRecord, Executor
from heterps_runtime.gradient_sums import numbers_in_piece
from heterps_runtime.measured_step import MeasuredStep
from heterps_runtime.messenger import Direction
from heterps_runtime.owned_stages import OwnedStages, build_stages
from heterps_runtime.run_specification import RunSpecification
from heterps_runtime.specification_builder import build_specification

_Address = tuple[int, int, Direction, int]  # from, to, direction, tag


class LocalRun:
    """Trains under a plan in this process.

    Args:
        specification: The run; its emulation is left out.

    Attributes:
        owned: The stages of each device.
        executors: What carries out each device's list.
    """

    def __init__(self, specification: RunSpecification) -> None:
        assert specification.resume_from is None, "it starts from the beginning"
        self._specification = specification.model_copy(update={"emulation": None})
        devices = specification.devices
        modules = [build_stages(self._specification, device) for device in devices]
        names = [
            sorted({name for m in own.values() for name in m.parameters_by_name()})
            for own in modules
        ]
        mail: dict[_Address, Tensor] = {}
        self._sums: dict[tuple[int, ...], tuple[Tensor, ...]] = {}
        self._next: dict[str, int] = {}
        self.owned = {
            device: OwnedStages(self._specification, modules[rank], _Everybody(rank, names))
            for rank, device in enumerate(devices)
        }
        self.executors = {
            device: Executor(
                self._specification,
                device,
                self.owned[device],
                _LocalMessenger(rank, mail, self._sums),
                HostClock(),
            )
            for rank, device in enumerate(devices)
        }
        self.num_steps = 0

    @classmethod
    def of(
        cls, problem: Problem, plan: Plan, schedule: Schedule | None = None, seed: int = 0
    ) -> LocalRun:
        """A run of a plan; by default with its usual action lists."""
        schedule = schedule or build_schedule(problem, plan)
        return cls(
            build_specification(
                problem, plan, schedule, devices=plan.devices, num_steps=1, seed=seed
            )
        )

    @property
    def specification(self) -> RunSpecification:
        """What is run."""
        return self._specification

    def step(self) -> float:
        """One step of all devices; returns the loss of the global batch."""
        return self._step(self.executors)

    def measured_step(self) -> dict[str, MeasuredStep]:
        """One step under memory ledgers, by device; not the first step."""
        assert self.num_steps > 0, "the optimizer has no state yet"
        measured = {
            device: MeasuredStep(device, executor, self.owned[device])
            for device, executor in self.executors.items()
        }
        self._step(measured)
        return measured

    def _step(self, runners: Mapping[str, _Runner]) -> float:
        specification = self._specification
        for device, runner in runners.items():
            needed = self.executors[device].micro_batches
            runner.begin(micro_batches(specification, self.num_steps, needed), 0.0)
        self._next = dict.fromkeys(runners, 0)
        while waiting := [device for device in runners if self._action(device) is not None]:
            moved = [self._advance(device, runners[device]) for device in waiting]
            if not any(moved) and not self._meet(runners):
                stuck = "; ".join(f"{device}: {self._action(device)}" for device in waiting)
                raise AssertionError(f"the action lists wait for one another: {stuck}")
        self.num_steps += 1
        return sum(runner.end()[0] for runner in runners.values())

    def _action(self, device: str) -> Action | None:
        """The next action of a device."""
        program, index = self.executors[device].program, self._next[device]
        return program[index].action if index < len(program) else None

    def _advance(self, device: str, runner: _Runner) -> bool:
        """Carries out actions of one device until it has to wait; were there any?"""
        first = self._next[device]
        while (action := self._action(device)) is not None:
            is_joint = action.kind in ("reduce", "step")
            if is_joint or not self.executors[device].is_ready(self._next[device]):
                break
            runner.execute(self._next[device])
            self._next[device] += 1
        return self._next[device] > first

    def _meet(self, runners: Mapping[str, _Runner]) -> bool:
        """Carries out the next all-reduce, or the optimizer step, where all take part that must."""
        for index, bucket in enumerate(self._specification.buckets):
            actions = [self._action(device) for device in bucket.devices]
            if all(a is not None and a.kind == "reduce" and a.bucket == index for a in actions):
                self._sum([index], bucket.devices, runners)
                return True
        if all(a is not None and a.kind == "step" for a in map(self._action, runners)):
            unscheduled = next(iter(self.owned.values())).unscheduled_buckets
            self._sum(unscheduled, tuple(runners), runners)
            return True
        return False

    def _sum(
        self, buckets: Iterable[int], devices: Sequence[str], runners: Mapping[str, _Runner]
    ) -> None:
        """Adds up gradients, and lets every device take the sums in its own action."""
        for index in buckets:
            flats = [self.owned[device].flat_gradients(index) for device in self.owned]
            owned = [flat for flat in flats if flat is not None]
            if owned:
                ranks = self.owned[devices[0]].bucket_ranks(index)
                total = torch.stack(owned).sum(dim=0)
                self._sums[ranks] = torch.split(total, numbers_in_piece(total.element_size()))
        for device in devices:
            runners[device].execute(self._next[device])
            self._next[device] += 1


class _Runner(Protocol):
    """An executor, or an executor under a ledger."""

    def begin(self, batches: Mapping[int, Batch], start_s: float) -> None: ...

    def execute(self, index: int) -> None: ...

    def end(self) -> tuple[float, list[ActionRecord]]: ...


class _Everybody:
    """What all ranks know of each other, without asking."""

    def __init__(self, rank: int, names: list[list[str]]) -> None:
        self.rank, self._names = rank, names

    def gather(self, value: Any) -> list[Any]:
        """The parameter names of all ranks."""
        assert value == self._names[self.rank]
        return list(self._names)

    def groups(self, owners: Iterable[tuple[int, ...]]) -> Mapping[tuple[int, ...], Any]:
        """There are no groups."""
        return {}


class _LocalMessenger:
    """Messages by a shared letter box; sums that the run has made."""

    def __init__(
        self,
        rank: int,
        mail: dict[_Address, Tensor],
        sums: Mapping[tuple[int, ...], tuple[Tensor, ...]],
    ) -> None:
        self._rank, self._mail, self._sums = rank, mail, sums
        self._num_summed: dict[tuple[int, ...], int] = {}

    def receive(self, buffer: Tensor, source: int, direction: Direction, tag: int) -> _Letter:
        """Asks for a message."""
        return _Letter(self._mail, (source, self._rank, direction, tag), buffer)

    def send(self, buffer: Tensor, destination: int, direction: Direction, tag: int) -> _Sent:
        """Puts a message into the box."""
        address = self._rank, destination, direction, tag
        assert address not in self._mail
        self._mail[address] = buffer.detach()
        return _Sent()

    def start_sum(self, flat: Tensor, ranks: tuple[int, ...]) -> _Sent:
        """Takes the next piece of the sum, which is there already."""
        pieces = self._sums[ranks]
        number = self._num_summed.get(ranks, 0)
        flat.copy_(pieces[number])
        self._num_summed[ranks] = (number + 1) % len(pieces)
        return _Sent()

    def latest_s(self, time_s: float, ranks: tuple[int, ...]) -> float:
        """There is no emulated time here."""
        raise AssertionError


class _Sent:
    """What is done already."""

    def wait(self) -> None:
        """There is nothing to wait for."""

    def is_completed(self) -> bool:
        return True


class _Letter:
    """A message that is waited for."""

    def __init__(self, mail: dict[_Address, Tensor], address: _Address, buffer: Tensor) -> None:
        self._mail, self._address, self._buffer = mail, address, buffer

    def wait(self) -> None:
        """Takes it out of the box."""
        self._buffer.copy_(self._mail.pop(self._address))

    def is_completed(self) -> bool:
        return self._address in self._mail
