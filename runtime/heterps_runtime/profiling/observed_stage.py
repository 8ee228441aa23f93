"""A stage whose passes are observed layer by layer.

A forward pass enters a layer where the layer's first unit, or function between units, is called;
what the model computes besides belongs to the one in front. A backward pass enters a layer where
the gradient of what it sent on is complete: autograd takes its nodes in the reverse order of their
making, so the next node is the layer's own. The loss belongs to the last layer of the model.

Observing takes no time that counts: the clock stands while it does, calls are wrapped where a stage
wraps them anyway (hooks of `nn.Module` cost microseconds more for each call), and what autograd
needs to call a hook is measured once and subtracted. A GPU that is behind the host notices none of
it (`heterps_runtime.process.stopwatch`).
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Self

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.model_profile import ModelProfile
from heterps_runtime.models.build import build_module
from heterps_runtime.models.layers import Layer, layers_of
from heterps_runtime.models.losses import loss_sum
from heterps_runtime.models.recording import Recording, UnitOutput
from heterps_runtime.models.recordings import record
from heterps_runtime.process.stopwatch import Moment, Stopwatch
from heterps_runtime.stages.build import build_stage
from heterps_runtime.stages.stage import StagePart

# Of the measurement of what a hook costs: operations of a backward pass, and passes.
_NUM_OPERATIONS, _NUM_PASSES = 64, 21


@dataclass
class Stamps:
    """When a pass began, entered each layer (in order), and ended.

    Attributes:
        hooks: For each layer, how often autograd has called the observer.
        freed: When what it had kept was freed; None where it still holds that.
    """

    began: Moment = None
    entered: dict[int, Moment] = field(default_factory=dict)
    hooks: dict[int, int] = field(default_factory=dict)
    ended: Moment = None
    freed: Moment = None

    def layer_seconds(self, watch: Stopwatch) -> dict[int, float]:
        """Seconds in each layer that was entered."""
        return self._of_each_layer(watch.seconds)

    def launch_seconds(self, watch: Stopwatch) -> dict[int, float]:
        """What the host took to launch each layer."""
        return self._of_each_layer(watch.launch_seconds)

    def _of_each_layer(self, seconds: Callable[[Moment, Moment, float], float]) -> dict[int, float]:
        moments = [*self.entered.values(), self.ended]
        hook_s = hook_cost_s() if self.hooks else 0.0
        return {
            index: max(
                seconds(moments[number], moments[number + 1], self.hooks.get(index, 0) * hook_s),
                0.0,
            )
            for number, index in enumerate(self.entered)
        }

    def total_s(self, watch: Stopwatch) -> float:
        """Seconds of the whole pass, and of freeing what it kept."""
        return watch.seconds(self.began, self.freed or self.ended)


@dataclass
class Pass:
    """One micro-batch on its way through the stage.

    Attributes:
        received: What came over the front cut.
        roots: Where the backward pass begins.
        made: What the stage's layers sent to one another and needs a gradient.
    """

    received: tuple[Tensor, ...]
    roots: list[Tensor] = field(default_factory=list)
    made: list[Tensor] = field(default_factory=list)
    forward: Stamps = field(default_factory=Stamps)
    backward: Stamps = field(default_factory=Stamps)


@dataclass(frozen=True)
class ObservedModel:
    """What all observed stages of a model have in common.

    Attributes:
        profile: With its source.
        layers: All layers of the model.
        recording: Of `size` samples.
        size: Samples of one of the micro-batches.
        dtype: Format of parameters and activations.
        device: `cpu` or `cuda:N`.
    """

    profile: ModelProfile
    layers: tuple[Layer, ...]
    recording: Recording
    size: int
    dtype: Dtype
    device: str

    @classmethod
    def of(
        cls, profile: ModelProfile, size: int, dtype: Dtype = "float32", device: str = "cpu"
    ) -> Self:
        """Builds the model without weights, and records it.

        Raises:
            HeterpsError: The model cannot be built or run.
        """
        assert profile.source is not None
        module = build_module(profile.source, dtype=dtype)
        recording = record(profile.source, module, size, dtype)
        return cls(profile, layers_of(recording), recording, size, dtype, device)

    @property
    def source(self) -> ModelSource:
        """How to build the model."""
        assert self.profile.source is not None
        return self.profile.source


class ObservedStage:
    """Layers `first .. last` (inclusive) of a model as one stage.

    Attributes:
        stage: The stage itself.
        device: `cpu` or `cuda:N`.
        watch: Its clock.
        layer_range: Indices of its layers.
        on_layer: Called, if set, with the index of every layer that a pass enters, and the tensors
            that the layer is called with (none in a backward pass).
        is_observed: Whether passes are; false to time whole passes as they run in a pipeline.
    """

    def __init__(
        self,
        model: ObservedModel,
        first: int,
        last: int,
        defers_weight_gradients: bool = False,
    ) -> None:
        self._source, self.device = model.source, model.device
        self.watch = Stopwatch(model.device)
        part = StagePart(
            first, last, model.size,
            dtype=model.dtype, device=model.device, defers_weight_gradients=defers_weight_gradients,
        )  # fmt: skip
        self.stage = build_stage(model.source, model.profile, part)
        self.stage.train()
        self.layer_range = range(first, last + 1)
        self.on_layer: Callable[[int, list[Tensor]], None] | None = None
        layers = model.layers[first : last + 1]
        self._layer_of = {
            call: index
            for index, layer in zip(self.layer_range, layers, strict=True)
            for call in layer.calls
        }
        self._first_calls = {layer.first_call for layer in layers}
        self._crossing = frozenset(source for layer in layers for source in layer.crossing)
        calls = model.recording.calls
        self._numbers = {
            (calls[number].path, calls[number].occurrence): number
            for number in self._layer_of
            if calls[number].function is None
        }
        self._count: dict[str, int] = {}
        self._current = Pass(())
        self.is_observed = True
        for path in {path for path, _ in self._numbers}:
            self._observe(path, self.stage.module.get_submodule(path))

    @property
    def is_cuda(self) -> bool:
        """Whether it runs on a GPU."""
        return torch.device(self.device).type == "cuda"

    def _observe(self, path: str, unit: nn.Module) -> None:
        forward = unit.forward

        def observed(*args: Any, **kwargs: Any) -> Any:
            if not self.is_observed:
                return forward(*args, **kwargs)
            count = self._count[path] = self._count.get(path, 0) + 1
            number = self._numbers.get((path, count))
            self.enter(number, (args, kwargs))
            output = forward(*args, **kwargs)
            self.leave(number, output)
            return output

        unit.forward = observed

    def random_input(self, size: int) -> tuple[Tensor, ...]:
        """Random tensors in the place of what comes over the front cut."""
        return tuple(
            (
                torch.randn(spec.shape, dtype=spec.dtype, device=self.device)
                if spec.dtype.is_floating_point
                else torch.zeros(spec.shape, dtype=spec.dtype, device=self.device)
            ).requires_grad_(spec.requires_grad)
            for spec in self.stage.specs(size)[0]
        )

    def run_forward(
        self, inputs: dict[str, Tensor], target: Tensor, received: tuple[Tensor, ...]
    ) -> Pass:
        """One forward pass, with the loss after the model's last layer."""
        made = self._current = Pass(received)
        self._count = {}
        made.forward.began = self.watch.now()
        self.stage.observe_functions(self if self.is_observed else None)
        outputs = self.stage(inputs, received)
        if self.stage.is_last:
            outputs = (loss_sum(self._source, outputs[0], target),)
        made.forward.ended = self.watch.now()
        made.roots = [tensor for tensor in outputs if tensor.requires_grad]
        if self.is_observed:
            for root in made.roots:
                self._await_gradient(made, self.layer_range[-1], root)
        self._current = Pass(())
        return made

    def run_backward(self, made: Pass, gradients: Sequence[Tensor], *, all_of_it: bool) -> None:
        """The backward pass; frees what the forward pass kept.

        Args:
            made: The forward pass.
            gradients: One for each root.
            all_of_it: Whether gradients of parameters are computed, too.
        """
        stamps = made.backward
        stamps.began = self.watch.now()
        if all_of_it:
            torch.autograd.backward(made.roots, gradients)
        else:
            needed = [tensor for tensor in made.received if tensor.requires_grad] + made.made
            if needed:
                torch.autograd.grad(made.roots, needed, gradients, allow_unused=True)
        stamps.ended = self.watch.now()
        # The hooks hold the pass and the pass holds their tensors: ends the cycle.
        made.roots, made.made, made.received = [], [], ()
        stamps.freed = self.watch.now()

    def enter(self, number: int | None, arguments: object) -> None:
        """Call `number` begins; None: of a unit that every stage has."""
        self.watch.pause()
        if number in self._first_calls:
            index = self._layer_of[number]
            if self.on_layer is not None:
                leaves = tree_leaves(arguments)
                self.on_layer(index, [leaf for leaf in leaves if isinstance(leaf, Tensor)])
            self.watch.resume()
            self._current.forward.entered[index] = self.watch.now()
        else:
            self.watch.resume()

    def leave(self, number: int | None, output: object) -> None:
        """Call `number` has returned."""
        self.watch.pause()
        if number is not None:
            for leaf, tensor in enumerate(tree_leaves(output)):
                is_sent = UnitOutput(number, leaf) in self._crossing
                if is_sent and isinstance(tensor, Tensor) and tensor.requires_grad:
                    self._current.made.append(tensor)
                    self._await_gradient(self._current, self._layer_of[number], tensor)
        self.watch.resume()

    def _await_gradient(self, made: Pass, index: int, tensor: Tensor) -> None:
        def arrived(gradient: Tensor) -> None:
            self.watch.pause()
            stamps = made.backward
            is_first = index not in stamps.entered
            stamps.hooks[index] = stamps.hooks.get(index, 0) + 1
            if is_first and self.on_layer is not None:
                self.on_layer(index, [])
            self.watch.resume()
            if is_first:
                stamps.entered[index] = self.watch.now()

        tensor.register_hook(arrived)  # type: ignore[no-untyped-call]


@cache
def hook_cost_s() -> float:
    """Seconds that autograd needs on this host to call a hook that does nothing."""

    def backward_s(has_hooks: bool) -> float:
        first = torch.zeros(1, requires_grad=True)
        last = first
        for _ in range(_NUM_OPERATIONS):
            last = last * 1.0
            if has_hooks:
                last.register_hook(lambda gradient: None)  # type: ignore[no-untyped-call]
        began_s = time.perf_counter()
        last.backward()  # type: ignore[no-untyped-call]
        return time.perf_counter() - began_s

    extra_s = [backward_s(True) - backward_s(False) for _ in range(_NUM_PASSES)]
    return max(statistics.median(extra_s) / _NUM_OPERATIONS, 0.0)
