"""Stages: the part of a model that one device holds, run through the model's own `forward`.

The whole model's `forward` runs on every stage. Units in front of the stage return what they
returned when the model was recorded, with the received tensors in the places that cross the cut and
zeros elsewhere; the stage's own units compute; the pass ends after the last of them. The same holds
for functions of torch that are called with what units made (`models.functional_calls`). What lies
between units besides (masks, rotary tables, positions) is thereby computed where it is needed.

Random numbers (dropout) are a function of seed, step, micro-batch and unit call, so that they do
not depend on the split. On batch normalisation see `heterps_runtime.stages.batch_norm`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from torch import Tensor, nn

from heterps_configs.documents.base import Dtype, is_mixed
from heterps_configs.documents.model.source import ModelSource
from heterps_envs.layer_costs.group_slice import GroupSlice
from heterps_runtime.models.build import Arguments, build_module
from heterps_runtime.models.layers import Layer, parameter_layers
from heterps_runtime.models.mixed_precision import autocast, use_tensor_cores
from heterps_runtime.models.random_numbers import random_numbers
from heterps_runtime.models.recording import (
    Recording,
    TensorSpec,
    select_output,
)
from heterps_runtime.models.recordings import recorded
from heterps_runtime.stages.batch_norm import normalisations
from heterps_runtime.stages.deferred_gradients import defer_weight_gradients
from heterps_runtime.stages.own_parameters import aliases_of, hold_only
from heterps_runtime.stages.stage_pass import FunctionObserver, StagePass
from heterps_runtime.stages.start_values import StartValues
from heterps_runtime.tensor_parallel.batch_call import BatchCall
from heterps_runtime.tensor_parallel.cross_entropy import SplitCrossEntropy
from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit, slices_of
from heterps_runtime.tensor_parallel.sample_part import SamplePart
from heterps_runtime.tensor_parallel.slices import TensorSlice
from heterps_runtime.tensor_parallel.split import split_module
from heterps_runtime.tensor_parallel.sums import GroupPass, GroupSums


class StagePart(NamedTuple):
    """Which layers of a model a stage has, and how it holds them.

    Attributes:
        first_layer: Index of the first layer.
        last_layer: Index of the last layer (inclusive).
        micro_batch_size: Samples of a usual micro-batch; others work, too.
        seed: Initial parameters are a function of it and their names.
        dtype: Of the job: format of parameters and activations, or mixed precision.
        device: Where to build.
        recompute_layers: Layers of the stage that keep only what enters them, and run again in the
            backward pass.
        offloaded_layers: Layers of the stage whose activations wait in host memory.
        defers_weight_gradients: Backward passes may put off weight gradients
            (`heterps_runtime.stages.deferred_gradients`).
        split: Which parameters of the model a tensor-parallel group splits.
        group: The rank's place in its group; None: it has all of each layer.
        whole_layers: Layers of the stage that the group does not split.
        batch_layers: Layers of the stage whose samples the group splits.
        batch_calls: What of the model's calls belongs to samples; of those layers at least.
        sums: Over that group.
        keeps_logits: Where a group splits the last layer's head, its ranks return the logits of
            their classes alone, and `split_loss` is what reads them.
    """

    first_layer: int
    last_layer: int
    micro_batch_size: int
    seed: int = 0
    dtype: Dtype = "float32"
    device: str = "cpu"
    recompute_layers: Collection[int] = ()
    offloaded_layers: Collection[int] = ()
    defers_weight_gradients: bool = False
    split: Mapping[str, ParameterSplit] = MappingProxyType({})
    group: GroupSlice | None = None
    whole_layers: Collection[int] = ()
    batch_layers: Collection[int] = ()
    batch_calls: Collection[BatchCall] = ()
    sums: GroupSums | None = None
    keeps_logits: bool = False


class StageModule(nn.Module):
    """A run of layers of one model; holds only their parameters.

    Attributes:
        micro_batch_size: Samples of a usual micro-batch.
        is_first, is_last: Whether it begins or ends the model.
        layer_range: First and last layer (inclusive).
        parameter_layers: For every parameter of the whole model, the layers that use it.
        aliases: Other names of the whole model's tied parameters, with their first.
        device: Where it computes.
        split_loss: The loss of what it returns, where that is a rank's part of the logits.
        slices: Of parameters and buffers that the rank's group splits, which part it holds.
        has_batch_norm: Whether any stage of the model normalises over a batch
            (`heterps_runtime.stages.batch_norm`).
    """

    def __init__(
        self,
        source: ModelSource,
        module: nn.Module,
        layers: tuple[Layer, ...],
        recording: Recording,
        part: StagePart,
        start: StartValues,
    ) -> None:
        super().__init__()
        first, last = self.layer_range = part.first_layer, part.last_layer
        self.is_first, self.is_last = first == 0, last == len(layers) - 1
        self.parameter_layers = parameter_layers(layers)
        self.micro_batch_size, self._recordings = (
            part.micro_batch_size,
            {part.micro_batch_size: recording},
        )
        self._source, self._dtype = source, part.dtype
        self._is_mixed, self._arguments = is_mixed(part.dtype), Arguments(source, part.dtype)
        self.device = torch.device(part.device)
        use_tensor_cores(part.dtype, self.device.type)
        self._calls = range(layers[first].first_call, layers[last].last_call + 1)
        self._receives = layers[first - 1].crossing if first else ()
        self._sends = layers[last].crossing
        own = {name for layer in layers[first : last + 1] for name in layer.parameters}
        self.has_batch_norm = bool(normalisations(module))
        unsplit = (*part.whole_layers, *part.batch_layers)
        whole = {name for layer in unsplit for name in layers[layer].parameters}
        self.slices = self._slices(module, own - whole, part)
        self.aliases = aliases_of(module)
        self._own = hold_only(module, own, self._calls, recording, start, self.slices, part.device)
        if part.defers_weight_gradients:
            defer_weight_gradients(module)
        self._group_pass = None
        if part.group is not None and (self.slices or part.batch_layers):
            assert part.sums is not None
            self._group_pass = GroupPass(part.sums)
        self.split_loss: SplitCrossEntropy | None = None
        if self.slices:
            assert part.group is not None
            assert part.sums is not None
            assert self._group_pass is not None
            split_module(
                module, part.split, self.slices, part.group, self._group_pass, self._own,
                part.keeps_logits,
            )  # fmt: skip
            heads = [piece for name, piece in self.slices.items() if part.split[name].ends_in_loss]
            if heads and self.is_last and part.keeps_logits:
                ((first_class, _),) = heads[0].ranges
                self.split_loss = SplitCrossEntropy(first_class, part.sums)
        recomputed, offloaded = (
            frozenset(call for layer in chosen for call in layers[layer].calls)
            for chosen in (part.recompute_layers, part.offloaded_layers)
        )
        self._samples = None
        if part.batch_layers and part.group is not None and self._group_pass is not None:
            own_calls = {call for layer in part.batch_layers for call in layers[layer].calls}
            self._samples = SamplePart(part.batch_calls, own_calls, part.group, self._group_pass)
        self._pass = StagePass(
            module, recording, self._calls, frozenset(self._sends), recomputed, offloaded,
            self._samples, self.device,
        )  # fmt: skip
        self.module = module

    def specs(self, batch_size: int) -> tuple[tuple[TensorSpec, ...], tuple[TensorSpec, ...]]:
        """What crosses the front and the back cut for `batch_size` samples.

        The first request for another size records the model again (about a second); ask for the
        sizes of a run before it starts.
        """
        recording = self._recording(batch_size)
        return (
            tuple(recording.spec(source) for source in self._receives),
            tuple(recording.spec(source) for source in self._sends),
        )

    def output_spec(self, batch_size: int) -> TensorSpec:
        """The whole model's output for `batch_size` samples."""
        output = self._recording(batch_size).output
        assert output is not None
        return output

    @property
    def reads_inputs(self) -> bool:
        """Whether it computes with the model's inputs; else their number of samples is enough."""
        return self.is_first or not self._pass.is_chain

    def parameters_by_name(self) -> dict[str, nn.Parameter]:
        """The stage's parameters by their names in the whole model (a tied one: its first)."""
        return dict(self._own)

    def tied_names(self) -> frozenset[str]:
        """Which of them other layers use, too; their gradients add up over all owners."""
        return frozenset(name for name in self._own if len(self.parameter_layers[name]) > 1)

    def buffers_by_name(self) -> dict[str, Tensor]:
        """Persistent buffers (running statistics) by their names in the whole model."""
        state = self.module.state_dict(keep_vars=True)
        return {name: state[name] for name, _ in self.module.named_buffers() if name in state}

    def observe_functions(self, observer: FunctionObserver | None) -> None:
        """Shows somebody the functions that it calls between its units; None: nobody any more."""
        self._pass.observer = observer

    def use(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Replaces own parameters by others of the same name, moved here or shared."""
        names = {id(parameter): name for name, parameter in self._own.items()}
        for part in self.module.modules():
            for attribute, parameter in list(part._parameters.items()):
                name = names.get(id(parameter))
                if name is not None and name in parameters:
                    part._parameters[attribute] = parameters[name]
        self._own.update((name, parameters[name]) for name in self._own if name in parameters)

    def forward(
        self,
        inputs: dict[str, Tensor],
        received: tuple[Tensor, ...] = (),
        random_key: tuple[int, int, int] = (0, 0, 0),
    ) -> tuple[Tensor, ...]:
        """Runs the stage on one micro-batch.

        Args:
            inputs: The model's inputs by name, (B, ...); every stage gets them.
            received: What crosses the front cut (`specs`); tensors that need gradients are leaves
                (`requires_grad_()`), and have a contiguous `.grad` after the backward pass, or None
                where nothing depends on them.
            random_key: Seed, step and micro-batch, which dropout depends on.

        Returns:
            What crosses the back cut; of the last stage, the model's output alone. All tensors are
            contiguous, none is a view.
        """
        num_samples = next(iter(inputs.values())).shape[0]
        recording = self._recording(num_samples)
        if self._samples is not None:
            self._samples.begin(num_samples)
        try:
            return self._run_in_format(inputs, received, recording, random_key)
        finally:
            if self._group_pass is not None:
                self._group_pass.forget()

    def _run_in_format(
        self,
        inputs: dict[str, Tensor],
        received: tuple[Tensor, ...],
        recording: Recording,
        random_key: tuple[int, int, int],
    ) -> tuple[Tensor, ...]:
        if not self._is_mixed:
            return self._run(inputs, received, recording, random_key)
        with autocast(self._dtype, self.device.type):
            made = self._run(inputs, received, recording, random_key)
        if self.is_last:
            return made
        # What crosses a cut has the format that it has on a CPU, whoever computed it.
        return tuple(
            tensor.to(recording.spec(source).dtype)
            for tensor, source in zip(made, self._sends, strict=True)
        )

    def _run(
        self,
        inputs: dict[str, Tensor],
        received: tuple[Tensor, ...],
        recording: Recording,
        random_key: tuple[int, int, int],
    ) -> tuple[Tensor, ...]:
        if not recording.is_random:
            return self._outputs(inputs, received, recording)
        with random_numbers(random_key, self.device) as draw:
            return self._outputs(inputs, received, recording, draw)

    def _outputs(
        self,
        inputs: dict[str, Tensor],
        received: tuple[Tensor, ...],
        recording: Recording,
        draw: Callable[[int], None] | None = None,
    ) -> tuple[Tensor, ...]:
        if self._pass.is_chain:
            if self.is_first:
                args, kwargs = self._arguments.of(inputs)
                received = (*args, *kwargs.values())
            (first,) = received
            return (_sendable(self._pass.run_chain(first, recording, draw)),)
        arrived = dict(zip(self._receives, received, strict=True))
        call = self._arguments.of(inputs)
        output = self._pass.run(call, self.module, recording, arrived, draw)
        if self.is_last:
            return (_sendable(select_output(output)),)
        made = self._pass.collected
        results = [
            arrived[source] if source in arrived else _sendable(made[source])
            for source in self._sends
        ]
        made.clear()
        return tuple(results)

    def _recording(self, batch_size: int) -> Recording:
        if batch_size not in self._recordings:
            module = build_module(self._source, dtype=self._dtype)
            recording = recorded(self._source, module, batch_size, self._dtype)
            self._recordings[batch_size] = recording
        return self._recordings[batch_size]

    def _slices(self, module: nn.Module, own: set[str], part: StagePart) -> dict[str, TensorSlice]:
        """Which part of some parameters the rank holds, where its group splits them."""
        if part.group is None:
            return {}
        shapes = {name: tuple(p.shape) for name, p in module.named_parameters() if name in own}
        return slices_of(part.split, shapes, part.group)


def _sendable(tensor: Tensor) -> Tensor:
    if tensor._is_view():
        return tensor.clone(memory_format=torch.contiguous_format)
    return tensor.contiguous()
