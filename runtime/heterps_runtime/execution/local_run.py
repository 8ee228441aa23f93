"""A whole run in one process: the devices of a plan take turns, messages change hands locally.

It executes the very action lists, by the very executors, without processes, emulation or waiting.
For checks of what does not depend on time: losses, gradients, memory. All of them compute on one
device, which may be a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import torch

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import RunSettings
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.execution.data_feed import micro_batches
from heterps_runtime.execution.emulation import HostClock
from heterps_runtime.execution.executor import Executor
from heterps_runtime.execution.local_turns import (
    DeadlockError,
    LetterBox,
    LocalGatherer,
    LocalGroupSums,
    LocalMessenger,
    start_step,
    take_turns,
)
from heterps_runtime.execution.measured_step import MeasuredStep
from heterps_runtime.specification.build import build_specification
from heterps_runtime.specification.devices import CPU, to_device
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.build import build_stages
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.training.batches import Batch

_Step = Callable[[Mapping[int, Batch], float], tuple[float, list[ActionRecord]]]


class LocalRun:
    """Trains under a plan in this process.

    Args:
        specification: The run; its emulation is left out.
        torch_device: Where all of its devices compute.

    Attributes:
        owned: The stages of each device.
        executors: What carries out each device's list.
    """

    def __init__(self, specification: RunSpecification, torch_device: torch.device = CPU) -> None:
        assert specification.resume_from is None, "it starts from the beginning"
        self._torch_device = torch_device
        self._specification = specification.changed(emulation=None)
        devices = specification.devices
        box = self._box = LetterBox(len(devices))
        self._messengers = {
            device: LocalMessenger(rank, box) for rank, device in enumerate(devices)
        }
        self.owned = take_turns(
            {
                device: partial(self._owned_stages, device, LocalGatherer(rank, box))
                for rank, device in enumerate(devices)
            }
        )
        self.executors = {
            device: Executor(
                self._specification,
                device,
                self.owned[device],
                self._messengers[device],
                HostClock(),
            )
            for device in devices
        }
        self.num_steps = 0

    @classmethod
    def of(
        cls, problem: Problem, plan: Plan, schedule: Schedule | None = None, seed: int = 0
    ) -> LocalRun:
        """A run of a plan; by default with its usual action lists."""
        schedule = schedule or build_schedule(problem, plan)
        settings = RunSettings(steps=1, seed=seed)
        return cls(build_specification(problem, plan, schedule, settings, devices=plan.devices))

    @property
    def specification(self) -> RunSpecification:
        """The specification of the run."""
        return self._specification

    def step(self) -> float:
        """One step of all devices; returns the loss of the global batch."""
        return self._step({device: executor.step for device, executor in self.executors.items()})

    def measured_step(self) -> dict[str, MeasuredStep]:
        """One step under memory ledgers, by device; not the first step."""
        assert self.num_steps > 0, "the optimizer has no state yet"
        measured = {
            device: MeasuredStep(device, executor, self.owned[device])
            for device, executor in self.executors.items()
        }
        self._step({device: step.run for device, step in measured.items()})
        return measured

    def _owned_stages(self, device: str, gatherer: LocalGatherer) -> OwnedStages:
        rank, messenger = self._specification.ranks[device], self._messengers[device]
        groups = [ranks for ranks in self._specification.group_ranks if rank in ranks]
        sums = LocalGroupSums(messenger, groups[0]) if groups else None
        modules = build_stages(
            self._specification, device, torch_device=self._torch_device, sums=sums
        )
        return OwnedStages(self._specification, modules, gatherer)

    def _step(self, steps: Mapping[str, _Step]) -> float:
        batches = {
            device: to_device(
                micro_batches(
                    self._specification, self.num_steps, self.executors[device].micro_batches
                ),
                self._torch_device,
            )
            for device in steps
        }
        start_step(self._box, list(self._messengers.values()))
        try:
            found = take_turns(
                {device: partial(step, batches[device], 0.0) for device, step in steps.items()}
            )
        except DeadlockError:
            stuck = "; ".join(f"{device}: {self._next_action(device)}" for device in steps)
            raise AssertionError(f"the action lists wait for one another: {stuck}") from None
        self.num_steps += 1
        return sum(loss for loss, _ in found.values())

    def _next_action(self, device: str) -> str:
        """What a device was doing, or "done"."""
        executor = self.executors[device]
        number = len(executor.records)
        return str(executor.program[number].action) if number < len(executor.program) else "done"
