"""From a module to a model profile: FLOPs, bytes and parameters of every layer, without weights.

One forward and one backward pass run on fake tensors (`heterps_runtime.tracing.counted_pass`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import nn

from heterps_configs.documents.base import Dtype
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model.source import ModelSource
from heterps_configs.documents.model.tensor_split import TensorSplit
from heterps_configs.documents.model_profile import ModelProfile
from heterps_runtime.models.build import build_module
from heterps_runtime.models.layers import Layer, layers_of, unit_calls
from heterps_runtime.models.recorder import Recorder
from heterps_runtime.models.recording import Recording, canonical_names
from heterps_runtime.tracing.counted_pass import Costs, counted_pass
from heterps_runtime.tracing.cut_tensors import sent_tensors
from heterps_runtime.tracing.operation_log import OperationLog, memory_of
from heterps_runtime.tracing.tensor_splits import SplitParameter, split_parameters, tensor_splits


def trace_source(source: ModelSource, name: str, dtype: Dtype = "float32") -> ModelProfile:
    """Builds a model without weights and traces it.

    Raises:
        HeterpsError: The model cannot be built or run; names it and its exception.
    """
    return trace(build_module(source, dtype=dtype), source, name, dtype)


def trace(
    module: nn.Module, source: ModelSource, name: str, dtype: Dtype = "float32"
) -> ModelProfile:
    """Traces a module whose parameters are on the meta device.

    All costs are for one sample. A causal mask is not discounted; scaled dot-product attention is
    charged as a flash kernel, the loss to the last layer. What CPUs keep of attention with dropout
    is counted apart.

    Args:
        module: From `build_module(source, dtype=dtype)`.
        source: What it takes and what its loss is.
        name: Name of the profile.
        dtype: Of the job.

    Raises:
        HeterpsError: Its forward pass fails.
    """
    recorder, costs, batch_size = counted_pass(module, source, dtype)
    costs.uncounted.warn(name)
    layers = layers_of(recorder.recording)
    saved = _saved_at_cuts(recorder, costs, layers)
    found = list(_layer_profiles(module, recorder.recording, layers, costs, saved, batch_size))
    splits = tensor_splits(module, layers, costs.log, recorder.parameter_storages, batch_size)
    return ModelProfile(
        name=name,
        dtype=dtype,
        sample=_sample_in_words(source),
        source=source,
        layers=tuple(_with_split(entry, split) for entry, split in zip(found, splits, strict=True)),
    )


def _with_split(layer: LayerProfile, split: TensorSplit | None) -> LayerProfile:
    """Where groups split what is of no sample (dropout masks), none of it counts by itself."""
    if split is None or not split.shared_bytes:
        return layer.changed(tensor_split=split)
    together = layer.shared_bytes + layer.constant_bytes
    return layer.changed(tensor_split=split, shared_bytes=together, constant_bytes=0.0)


class TracedSplit(NamedTuple):
    """What of a model a tensor-parallel group splits.

    Attributes:
        recording: Of the pass.
        layers: All of them.
        parameters: Those that are split, by name.
    """

    recording: Recording
    layers: tuple[Layer, ...]
    parameters: dict[str, SplitParameter]


def trace_split(module: nn.Module, source: ModelSource, dtype: Dtype = "float32") -> TracedSplit:
    """What the `tensor_split` of the layers of `trace` counts, parameter by parameter."""
    recorder, costs, _ = counted_pass(module, source, dtype)
    layers = layers_of(recorder.recording)
    storages = recorder.parameter_storages
    return TracedSplit(
        recorder.recording, layers, split_parameters(module, layers, costs.log, storages)
    )


def _layer_profiles(
    module: nn.Module,
    recording: Recording,
    layers: tuple[Layer, ...],
    costs: Costs,
    saved: list[tuple[float, float]],
    batch_size: int,
) -> Iterator[LayerProfile]:
    names = canonical_names(module)
    sizes = {names[id(parameter)]: parameter.numel() for parameter in module.parameters()}
    frozen = {names[id(p)] for p in module.parameters() if not p.requires_grad}
    sparse = {names[id(part.weight)] for part in module.modules() if isinstance(part, nn.Embedding)}
    owner: dict[str, str] = {}
    constants = _kept_by_one_call(costs.log, len(recording.calls))
    for index, layer in enumerate(layers):
        calls = [*layer.calls, len(recording.calls)] if index == len(layers) - 1 else layer.calls
        forward, backward, traffic, activation = (
            sum(entry.get(call, 0.0) for call in calls) / batch_size
            for entry in (
                costs.forward_flops,
                costs.backward_flops,
                costs.traffic_bytes,
                costs.activation_bytes,
            )
        )
        tied = sorted({owner[name] for name in layer.parameters if name in owner})
        fields = dict(
            name=layer.name,
            kind=layer.kind,
            num_parameters=sum(sizes[name] for name in layer.parameters),
            forward_flops=forward,
            backward_flops=backward,
            activation_bytes=activation,
            output_bytes=sum(_bytes(recording, source) for source in layer.crossing) / batch_size,
            memory_traffic_bytes=traffic,
            sparse_parameters=sum(
                sizes[name] for name in layer.parameters & sparse if name not in owner
            ),
            tied_to=tied[0] if tied else None,
            tied_parameters=sum(sizes[name] for name in layer.parameters if name in owner),
            frozen_parameters=sum(sizes[name] for name in layer.parameters & frozen),
            saved_input_bytes=saved[index - 1][1] / batch_size if index else 0.0,
            saved_output_bytes=saved[index][0] / batch_size,
            deferred_bytes=sum(costs.deferred_bytes.get(call, 0.0) for call in calls) / batch_size,
            sent=sent_tensors(recording, layers, index, batch_size),
            shared_bytes=sum(costs.shared_bytes.get(call, 0.0) for call in calls)
            - sum(constants.get(call, 0.0) for call in calls),
            constant_bytes=sum(constants.get(call, 0.0) for call in calls),
            attention_matrix_bytes=sum(
                size for call, _, size in costs.log.matrices if call in calls
            )
            / batch_size,
            buffer_bytes=_buffer_bytes(
                module, {part.path for part in unit_calls(recording, layer)}
            ),
            cast_bytes=sum(costs.cast_bytes.get(call, 0.0) for call in calls)
            if costs.is_mixed
            else None,
            parameter_sizes=tuple(
                sorted((sizes[name] for name in layer.parameters if sizes[name]), reverse=True)
            ),
            joined_because=layer.reasons,
            matrix_products=costs.products.of_calls(calls),
            num_kernels=costs.products.num_kernels(calls),
        )
        source = f"layer {layer.name}, as it was traced with these inputs"
        yield LayerProfile.from_mapping(fields, source)
        for name in layer.parameters:
            owner.setdefault(name, layer.name)


def _kept_by_one_call(log: OperationLog, num_calls: int) -> dict[int, float]:
    """Of what is of no sample, bytes that one call alone computes and keeps, by call; no loss."""
    calls: dict[int, set[int]] = {}
    for call, memory, _ in log.shared:
        calls.setdefault(memory, set()).add(call)
    # What is an input counts as one.
    computed = {
        memory_of(made)
        for operation in log.forward
        for made in operation.made
        if memory_of(made) not in map(memory_of, operation.read)
    }
    found: dict[int, float] = {}
    for call, memory, size in log.shared:
        if memory in computed and len(calls[memory]) == 1 and call < num_calls:
            found[call] = found.get(call, 0.0) + size
    return found


def _saved_at_cuts(
    recorder: Recorder, costs: Costs, layers: tuple[Layer, ...]
) -> list[tuple[float, float]]:
    """Of what crosses the cut behind each layer, the bytes that are kept in front and behind.

    A stage sends a copy of what is a view; that it keeps the original does not help.
    """
    outputs, found = recorder.output_tensors(), []
    for layer in layers:
        front = back = 0.0
        for source in layer.crossing:
            tensor, num_bytes = outputs[source], _bytes(recorder.recording, source)
            savers = costs.savers.get(tensor.untyped_storage()._cdata, set())
            if not tensor._is_view() and any(call <= layer.last_call for call in savers):
                front += num_bytes
            if any(call > layer.last_call for call in savers):
                back += num_bytes
        found.append((front, back))
    return found


def _buffer_bytes(module: nn.Module, paths: set[str]) -> int:
    """Bytes of the buffers of some submodules, each once."""
    buffers = {id(b): b for path in paths for b in module.get_submodule(path).buffers()}
    return sum(buffer.numel() * buffer.element_size() for buffer in buffers.values())


def _bytes(recording: Recording, source: Any) -> float:
    spec = recording.spec(source)
    return float(torch.Size(spec.shape).numel() * spec.dtype.itemsize)


def _sample_in_words(source: ModelSource) -> str:
    parts = []
    for entry in source.inputs:
        if entry.num_classes and entry.is_whole and len(entry.shape) == 1:
            parts.append(f"{entry.shape[0]} integers below {entry.num_classes} ({entry.name})")
        else:
            shape = " x ".join(map(str, entry.shape)) or "1"
            parts.append(f"{shape} {entry.dtype} numbers ({entry.name})")
    return ", ".join(parts)
