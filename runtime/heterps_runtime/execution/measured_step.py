"""A step under a memory ledger: the executor's actions, one by one, with all tensors named."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from heterps_runtime.execution.action_records import ActionRecord
from heterps_runtime.execution.executor import Executor
from heterps_runtime.execution.measured_memory import held_in_actions
from heterps_runtime.execution.program import Pass
from heterps_runtime.process.memory_ledger import (
    ActionMemory,
    MemoryLedger,
    allocated_on_cuda_bytes,
    reset_on_cuda,
)
from heterps_runtime.process.memory_report import MemoryReport, check_limits
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.training.batches import Batch
from heterps_runtime.transport.communication import Communicator

logger = logging.getLogger(__name__)


class MeasuredStep:
    """Runs one step of a device and measures what it holds.

    It must not be the first step: the optimizer makes its state at the end of that.

    Args:
        device: Its name.
        executor: The device's executor.
        owned: The device's stages.

    Attributes:
        ledger: Where the bytes are counted.
    """

    def __init__(self, device: str, executor: Executor, owned: OwnedStages) -> None:
        self.ledger = MemoryLedger(device)
        self._executor, self._owned = executor, owned
        self._cuda = reset_on_cuda(owned.parameters.values())

    def run(
        self, batches: Mapping[int, Batch], start_s: float, slowdown: float = 1.0
    ) -> tuple[float, list[ActionRecord]]:
        """Runs the whole step."""
        self.begin(batches, start_s, slowdown)
        try:
            for index in range(len(self._executor.program)):
                self.execute(index)
            return self.end()
        finally:
            self._remove_hooks()  # also where another rank has gone: the parameters live on

    def begin(self, batches: Mapping[int, Batch], start_s: float, slowdown: float = 1.0) -> None:
        """Names what is there, and posts the first receives."""
        ledger, owned = self.ledger, self._owned
        ledger.mark("parameters", owned.parameters.values())
        for module in owned.modules.values():
            ledger.mark("parameters", module.module.buffers())
        ledger.mark("optimizer", owned.optimizer_tensors())
        for inputs, target in batches.values():
            ledger.mark("inputs", (*inputs.values(), target))
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for parameter in owned.parameters.values()
            if parameter.requires_grad
        ]
        with ledger.born_as("messages"):
            self._executor.begin(batches, start_s, slowdown)

    def execute(self, index: int) -> None:
        """Executes one action and notes what it held."""
        step, ledger = self._executor.program[index], self.ledger
        with ledger.during(step.action):
            self._executor.execute(index)
            if step.action.kind == "forward":
                assert isinstance(step, Pass)
                ledger.keep(self._executor.held(step.key))
            elif step.action.kind in ("backward", "backward-input"):
                ledger.mark("messages", self._executor.gradients_to_hand_over())
            elif step.action.kind in ("reduce", "backward-weight"):
                self.mark_gradients()

    def mark_gradients(self) -> None:
        """Names the gradients anew, after an all-reduce."""
        self.ledger.mark("gradients", (p.grad for p in self._owned.parameters.values()))

    def end(self) -> tuple[float, list[ActionRecord]]:
        """The loss and the records of the step."""
        self._remove_hooks()
        return self._executor.end()

    def _remove_hooks(self) -> None:
        for hook in self._hooks:
            hook.remove()

    def report(self) -> MemoryReport:
        """What the step held at most, by kind."""
        allocated = None if self._cuda is None else allocated_on_cuda_bytes(self._cuda)
        return self.ledger.report().changed(allocated_bytes=allocated)

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        self.ledger.mark("gradients", (parameter.grad,))


class PlanMemory:
    """What a device holds under one plan; nothing until its step is measured.

    Args:
        specification: With the plan, and limits where devices are emulated.
        device: Of this rank.
        communicator: The processes.
        on_step: Called on rank 0 with what each device held at most (`memory_bytes`).
    """

    def __init__(
        self,
        specification: RunSpecification,
        device: str,
        communicator: Communicator,
        on_step: Callable[[dict[str, Any]], None],
    ) -> None:
        self._specification, self._device = specification, device
        self._communicator, self._on_step = communicator, on_step
        self._report: MemoryReport | None = None
        self._actions: list[ActionMemory] = []

    def measure(
        self,
        executor: Executor,
        owned: OwnedStages,
        batches: Mapping[int, Batch],
        start_s: float,
        slowdown: float,
    ) -> tuple[float, list[ActionRecord]]:
        """Runs one step under a ledger; returns its loss and its records.

        Raises:
            OutOfMemoryError: On every rank, where one of them has less than it held.
        """
        measured = MeasuredStep(self._device, executor, owned)
        result = measured.run(batches, start_s, slowdown)
        self._report, self._actions = measured.report(), measured.ledger.actions
        logger.info(
            "memory: at most %d bytes, in %s of stage %s",
            self._report.peak_bytes,
            self._report.peak_action,
            self._report.peak_stage or "-",
        )
        reports = self._communicator.gather(self._report, MemoryReport)
        if self._communicator.rank == 0:
            self._on_step({"memory_bytes": {entry.device: entry.peak_bytes for entry in reports}})
        emulation = self._specification.emulation
        if emulation is not None:
            limits = {
                entry.device: entry.memory_bytes
                for entry in emulation.devices
                if entry.memory_bytes is not None
            }
            check_limits(reports, limits)
        return result

    def result(self) -> dict[str, Any]:
        """For the result of the rank."""
        return {
            "memory": self._report and self._report.model_dump(),
            "memory_actions": held_in_actions(self._actions),
        }
