"""A step under a memory ledger: the executor's actions, one by one, with all tensors named."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from heterps_runtime.execution.executor import ActionRecord, Executor
from heterps_runtime.execution.program import Pass
from heterps_runtime.process.memory_ledger import (
    MemoryLedger,
    allocated_on_cuda_bytes,
    reset_on_cuda,
)
from heterps_runtime.process.memory_report import MemoryReport
from heterps_runtime.stages.owned_stages import OwnedStages
from heterps_runtime.training.batches import Batch


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
