"""Times the layers of a window while it runs steps as a stage of a pipeline does.

A layer that runs alone finds its parameters and tensors in the caches and its memory just freed; in
a pipeline other layers have run in between. So a window of neighbouring layers runs whole steps:
several micro-batches, two of them in flight, gradients added up, an optimizer step. Each layer is
timed inside (`heterps_runtime.profiling.observed_stage`).
"""

from __future__ import annotations

import time
from collections import deque

import torch
from torch import Tensor

from heterps_configs.documents.job import Optimizer
from heterps_runtime.models.data import make_batch
from heterps_runtime.models.mixed_precision import SharedCopies
from heterps_runtime.models.recording import TensorSpec
from heterps_runtime.profiling.backward_bytes import parts_of_pass, whole_pass
from heterps_runtime.profiling.observed_stage import ObservedModel, ObservedStage, Pass
from heterps_runtime.profiling.peak_bytes import peak_bytes
from heterps_runtime.profiling.samples import SizeSamples
from heterps_runtime.profiling.saved_bytes import saved_bytes
from heterps_runtime.stages.optimizer import build_optimizer
from heterps_runtime.transport.messages import Layout, pack

# Micro-batches of one visit: the first makes the gradients, the others add to them.
NUM_MICRO_BATCHES = 4
IN_FLIGHT = 2
# Passes of which the gradients of parameters are left out, to learn their share.
NUM_INPUT_PASSES = 2
# Passes of a stage, to learn what it takes beside its layers.
NUM_OVERHEAD_PASSES, MIN_OVERHEAD_PASSES, NUM_OVERHEAD_WARM_UPS = 12, 4, 3
_IDLE = -1


class Window:
    """Consecutive layers that run on random data.

    Args:
        model: The model.
        first: Index of the first layer.
        last: Index of the last layer (inclusive).
        optimizer: Whose step is timed.
    """

    def __init__(self, model: ObservedModel, first: int, last: int, optimizer: Optimizer) -> None:
        self._model, self._source, self._device = model, model.source, model.device
        self.stage = ObservedStage(model, first, last)
        self._watch = self.stage.watch
        parameters = self.stage.stage.parameters_by_name()
        self._optimizers: dict[int, torch.optim.Optimizer] = {}
        for index in self.stage.layer_range:
            own = [parameters[name] for name in sorted(model.layers[index].parameters)]
            stepper = build_optimizer(optimizer, [p for p in own if p.requires_grad])
            if stepper is not None:
                self._optimizers[index] = stepper
        # Its parameter never has a gradient: what a step takes that updates nothing.
        nothing = torch.nn.Parameter(torch.zeros(1, device=model.device))
        self._idle_optimizer = build_optimizer(optimizer, [nothing])
        self._step = 0
        self._copies = SharedCopies(model.dtype)

    def visit(self, size: int, samples: SizeSamples | None) -> None:
        """One step of several micro-batches.

        Args:
            size: Samples of a micro-batch.
            samples: Receives the seconds; None in a warm-up.
        """
        done: list[Pass] = []
        waiting: deque[Pass] = deque()
        self._copies.hold()
        for _ in range(NUM_MICRO_BATCHES):
            waiting.append(self._forward(size))
            if len(waiting) == IN_FLIGHT:
                done.append(self._backward(waiting.popleft()))
        while waiting:
            done.append(self._backward(waiting.popleft()))
        self._copies.release()
        optimizer_s = self._optimizer_step()
        light = [self._backward(self._forward(size), False) for _ in range(NUM_INPUT_PASSES)]
        self._watch.synchronize()
        if samples is None:
            return
        for made in done:
            for index, seconds in made.forward.layer_seconds(self._watch).items():
                samples.of(index).forward_s.append(seconds)
            for index, seconds in _backward_seconds(self.stage, made).items():
                samples.of(index).backward_s.append(seconds)
            if self._watch.is_cuda:
                self._add_launches(made, samples)
        for made in light:
            for index, seconds in _backward_seconds(self.stage, made).items():
                samples.of(index).input_gradient_s.append(seconds)
        for index, seconds in optimizer_s.items():
            samples.of(index).optimizer_s.append(seconds)

    def _add_launches(self, made: Pass, samples: SizeSamples) -> None:
        backward = made.backward
        passes = [made.forward, *([] if backward.began is None else [backward])]
        found = [stamps.launch_seconds(self._watch) for stamps in passes]
        for index in self.stage.layer_range:
            samples.of(index).launch_s.append(sum(seconds.get(index, 0.0) for seconds in found))

    def weigh(self, size: int, samples: SizeSamples) -> None:
        """Counts the bytes that the layers keep, and what they need for a while."""
        inputs, target = self._batch(size)
        received = self.stage.random_input(size)
        self._copies.hold()
        for index, kept in saved_bytes(self.stage, inputs, target, received).items():
            samples.of(index).activation_bytes = kept.own
            samples.of(index).shared_bytes = kept.shared
        self._weigh_backward(size, samples)
        self._backward(self._forward(size))
        peaks = peak_bytes(self.stage, lambda: self._forward(size), self._backward)
        for index, num_bytes in peaks.items():
            samples.of(index).peak_bytes = num_bytes
        self._drop_gradients()
        self._copies.release()

    def _weigh_backward(self, size: int, samples: SizeSamples) -> None:
        """Counts what comes in the layers' backward passes before as much has gone."""
        inputs, target = self._batch(size)
        whole = whole_pass(self.stage, inputs, target)
        for index, num_bytes in whole.items():
            samples.of(index).first_backward_bytes = num_bytes
        self._drop_gradients()
        # Its layers compute in another way: it is built for this alone.
        layers = self.stage.layer_range
        parts = ObservedStage(self._model, layers[0], layers[-1], defers_weight_gradients=True)
        for index, entry in parts_of_pass(parts, inputs, target).items():
            layer = samples.of(index)
            layer.first_input_bytes = entry.first_input
            layer.later_input_bytes = entry.later_input
            layer.first_weight_bytes = entry.first_weight
            layer.early_gradient_bytes = entry.early_gradients

    def _batch(self, size: int) -> tuple[dict[str, Tensor], Tensor]:
        self._step += 1
        inputs, target = make_batch(self._source, self._step, size, seed=0)
        moved = {name: tensor.to(self._device) for name, tensor in inputs.items()}
        return moved, target.to(self._device)

    def _forward(self, size: int) -> Pass:
        inputs, target = self._batch(size)
        return self.stage.run_forward(inputs, target, self.stage.random_input(size))

    def _backward(self, made: Pass, all_of_it: bool = True) -> Pass:
        gradients = [torch.randn_like(root) for root in made.roots]
        if made.roots:
            self.stage.run_backward(made, gradients, all_of_it=all_of_it)
        return made

    def _optimizer_step(self) -> dict[int, float]:
        """Seconds for each layer; what a step takes that updates nothing is subtracted.

        That part is host time of a stage's step, which has all its layers in one optimizer. So is
        all that a GPU's host takes to launch a layer's: it is the device's time that adds up.
        """
        assert self._idle_optimizer is not None
        watch, spans = self._watch, {}
        steppers = {**self._optimizers, _IDLE: self._idle_optimizer}
        for index, stepper in steppers.items():
            watch.fall_behind()
            began = watch.now()
            stepper.step()
            spans[index] = began, watch.now()
        frees = {}
        for index, stepper in self._optimizers.items():
            began = watch.now()
            stepper.zero_grad(set_to_none=True)
            frees[index] = began, watch.now()
        watch.synchronize()
        idle_s = watch.seconds(*spans.pop(_IDLE))
        return {
            index: max(watch.seconds(*span) - idle_s, 0.0) + watch.seconds(*frees[index])
            for index, span in spans.items()
        }

    def _drop_gradients(self) -> None:
        for stepper in self._optimizers.values():
            stepper.zero_grad(set_to_none=True)


def measure_overhead(
    model: ObservedModel, first: int, last: int, size: int, samples: SizeSamples, limit_s: float
) -> None:
    """What a stage takes beside its layers, where it begins with layer `first`.

    Whole passes that nobody observes, with what freeing takes, less the layers of an observed pass
    right before: so the stage's total is that of a stage in a pipeline.

    Args:
        model: The model.
        first: Index of the stage's first layer.
        last: Of its last layer: what is sent costs host time, too.
        size: Samples of a micro-batch.
        samples: Receives the seconds.
        limit_s: Passes end after this time, but not before there are a few.
    """
    stage = ObservedStage(model, first, last)
    watch, entry = stage.watch, samples.start(first)
    batches = [make_batch(model.source, step, size, seed=0) for step in range(2)]
    started = time.perf_counter()
    for number in range(NUM_OVERHEAD_WARM_UPS + NUM_OVERHEAD_PASSES):
        inputs, target = batches[number % len(batches)]
        moved = {name: tensor.to(model.device) for name, tensor in inputs.items()}
        passes = []
        for stage.is_observed in (True, False):
            received = stage.random_input(size)
            watch.synchronize()
            made = stage.run_forward(moved, target.to(model.device), received)
            packed_s = _packing_s(stage, made)
            gradients = [torch.randn_like(root) for root in made.roots]
            if made.roots:
                stage.run_backward(made, gradients, all_of_it=True)
            watch.synchronize()
            passes.append(made)
        if number < NUM_OVERHEAD_WARM_UPS:
            continue
        if packed_s is not None:
            samples.cut_s.setdefault(last, []).append(packed_s)
        observed, plain = passes
        inside = observed.forward.layer_seconds(watch)
        entry.forward_s.append(plain.forward.total_s(watch) - sum(inside.values()))
        if plain.backward.began is not None:
            inside = observed.backward.layer_seconds(watch)
            entry.backward_s.append(plain.backward.total_s(watch) - sum(inside.values()))
        is_enough = len(entry.forward_s) >= MIN_OVERHEAD_PASSES
        if is_enough and time.perf_counter() - started > limit_s:
            break


def _packing_s(stage: ObservedStage, made: Pass) -> float | None:
    """Seconds to pack what the stage sends, and to lay it out again; None for a single tensor."""
    if stage.stage.is_last or len(made.roots) < 2:
        return None
    tensors = [root.detach() for root in made.roots]
    layout = Layout([TensorSpec(tuple(t.shape), t.dtype, True) for t in tensors])
    stage.watch.synchronize()
    began = time.perf_counter()
    pack(tensors)
    _, found = layout.allocate()
    for tensor in found:
        if tensor is not None:
            tensor.requires_grad_()
    stage.watch.synchronize()
    return time.perf_counter() - began


def _backward_seconds(stage: ObservedStage, made: Pass) -> dict[int, float]:
    """Of every layer; 0 where nothing needs a gradient."""
    seconds = dict.fromkeys(stage.layer_range, 0.0)
    if made.backward.began is not None:
        seconds.update(made.backward.layer_seconds(stage.watch))
    return seconds
