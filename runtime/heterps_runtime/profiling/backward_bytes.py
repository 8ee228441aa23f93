"""Measures the peak of each layer's backward pass: bytes beyond those that it begins with.

While a layer's backward pass runs, gradients of parameters come and activations go, in the order of
its operations. So for a while a layer may hold more than before and after its pass, and a stage's
peak often lies there. The whole pass and the two parts of a zero-bubble schedule are measured, each
under a memory ledger. Tensors between layers, and what all layers of a stage share, are left out:
they depend on where the model is cut.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from heterps_envs.schedule.actions import Action, ActionKind
from heterps_runtime.process.memory_ledger import Kind, MemoryLedger
from heterps_runtime.profiling.observed_stage import ObservedStage, Pass
from heterps_runtime.stages.deferred_gradients import DeferredGradients, Job


@dataclass
class BackwardBytes:
    """Of one layer, most bytes of gradients and activations beyond those when its pass begins.

    Attributes:
        first_pass: In a whole backward pass, the first one: gradients are made.
        first_input: In the first `backward-input`.
        later_input: In a later one: gradients that come at once are there already.
        first_weight: In the first `backward-weight`.
        early_gradients: Gradients that `backward-input` makes: of all but linear layers and
            convolutions.
    """

    first_pass: float = 0.0
    first_input: float = 0.0
    later_input: float = 0.0
    first_weight: float = 0.0
    early_gradients: float = 0.0


def whole_pass(stage: ObservedStage, inputs: dict[str, Tensor], target: Tensor) -> dict[int, float]:
    """`first_pass` of every layer; no parameter of the stage may have a gradient."""
    ledger = _Levels(stage)
    made = ledger.forward(inputs, target)
    with ledger.backward("backward"):
        _run_backward(stage, made)
    return ledger.highest


def parts_of_pass(
    stage: ObservedStage, inputs: dict[str, Tensor], target: Tensor
) -> dict[int, BackwardBytes]:
    """All but `first_pass` of every layer.

    Args:
        stage: Built with `defers_weight_gradients`; no parameter of it may have a gradient.
        inputs: Of the model.
        target: Of its loss.
    """
    found = {index: BackwardBytes() for index in stage.layer_range}
    ledger, jobs = _Levels(stage), list[Job]()
    for is_first in (True, False):
        made = ledger.forward(inputs, target)
        counts: list[tuple[int, int]] = []
        ledger.on_layer = lambda index, counts=counts: counts.append((index, len(jobs)))
        DeferredGradients.collected = jobs
        try:
            with ledger.backward("backward-input"):
                _run_backward(stage, made)
        finally:
            DeferredGradients.collected, ledger.on_layer = None, None
        for index, entry in found.items():
            if is_first:
                entry.first_input = ledger.highest[index]
                entry.early_gradients = ledger.gradients[index]
            else:
                entry.later_input = ledger.highest[index]
        with ledger.backward("backward-weight"), torch.no_grad():
            _do_jobs(ledger, jobs, counts)
        if is_first:
            for index, entry in found.items():
                entry.first_weight = ledger.highest[index]
    return found


def _run_backward(stage: ObservedStage, made: Pass) -> None:
    if made.roots:
        gradients = [torch.randn_like(root) for root in made.roots]
        stage.run_backward(made, gradients, all_of_it=True)


def _do_jobs(ledger: _Levels, jobs: list[Job], counts: list[tuple[int, int]]) -> None:
    """In their order, layer by layer, each dropped when it is done."""
    stops = [*(number for _, number in counts[1:]), len(jobs)]
    jobs.reverse()
    for (index, start), stop in zip(counts, stops, strict=True):
        ledger.enter(index)
        for _ in range(stop - start):
            jobs.pop()()


class _Levels(MemoryLedger):
    """Gradients and activations of a stage, layer by layer.

    Attributes:
        highest: By layer, the most of both beyond what there was when its pass began.
        gradients: By layer, what came in its pass.
        on_layer: Called, if set, with every layer that a backward pass enters.
    """

    def __init__(self, stage: ObservedStage) -> None:
        super().__init__(stage.device)
        self.on_layer: Callable[[int], None] | None = None
        self.highest: dict[int, float] = {}
        self.gradients: dict[int, float] = {}
        self._layer, self._before, self._gradients_before = -1, 0, 0
        self._stage = stage
        module = stage.stage.module
        self._parameters = [p for p in module.parameters() if p.requires_grad]
        self.mark("parameters", [*module.parameters(), *module.buffers()])

    def forward(self, inputs: dict[str, Tensor], target: Tensor) -> Pass:
        """A forward pass; what crosses cuts, and what all layers share, counts as inputs."""
        received = self._stage.random_input(len(target))
        self.mark("inputs", [*inputs.values(), target, *received])
        constants: list[Tensor] = []
        self._stage.on_layer = lambda index, tensors: constants.extend(
            tensor for tensor in tensors if not tensor.requires_grad
        )
        try:
            with self.during(Action("forward")):
                made = self._stage.run_forward(inputs, target, received)
                self.mark("inputs", [*made.received, *made.made, *made.roots, *constants])
        finally:
            self._stage.on_layer = None
        return made

    @contextmanager
    def backward(self, kind: ActionKind) -> Iterator[None]:
        """A backward pass, or a part of one."""
        self.highest = dict.fromkeys(self._stage.layer_range, 0.0)
        self.gradients = dict.fromkeys(self._stage.layer_range, 0.0)
        self._layer = -1
        self._stage.on_layer = lambda index, tensors: self.enter(index)
        hooks = [
            parameter.register_post_accumulate_grad_hook(self._on_gradient)  # type: ignore[no-untyped-call]
            for parameter in self._parameters
        ]
        try:
            with self.during(Action(kind)):
                yield
                self.enter(-1)
        finally:
            self._stage.on_layer = None
            for hook in hooks:
                hook.remove()

    def enter(self, index: int) -> None:
        """The pass goes on in another layer; -1: it is over."""
        if self._layer >= 0:
            self.gradients[self._layer] = self._bytes["gradients"] - self._gradients_before
        self._layer, self._before = index, self._level()
        self._gradients_before = self._bytes["gradients"]
        if index >= 0 and self.on_layer is not None:
            self.on_layer(index)

    def _level(self) -> int:
        return self._bytes["gradients"] + self._bytes["activations"]

    def _count(self, kind: Kind, num_bytes: int) -> None:
        super()._count(kind, num_bytes)
        if self._layer >= 0:
            beyond = float(self._level() - self._before)
            self.highest[self._layer] = max(self.highest[self._layer], beyond)

    def _on_gradient(self, parameter: nn.Parameter) -> None:
        self.mark("gradients", (parameter.grad,))
