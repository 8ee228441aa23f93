"""From a module to a model profile: FLOPs, bytes and parameters of every layer, without weights.

One forward and one backward pass run on fake tensors. Each operation is charged to the unit that is
called, or is about to be called; a backward operation to the unit whose forward pass made its
autograd node.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from heterps_configs.documents.base import Dtype, is_mixed
from heterps_configs.documents.model_profile import (
    LayerProfile,
    ModelProfile,
    ModelSource,
    TensorSplit,
)
from heterps_runtime.models.build import arguments, build_module, meta_inputs
from heterps_runtime.models.fake_operations import call_fake
from heterps_runtime.models.flop_formulas import UncountedOperations, flops_of, is_linear_layer
from heterps_runtime.models.layers import Layer, layers_of, unit_calls
from heterps_runtime.models.losses import loss_sum
from heterps_runtime.models.mixed_precision import autocast, autocast_format, is_copy
from heterps_runtime.models.recorder import Recorder
from heterps_runtime.models.recording import Recording, canonical_names
from heterps_runtime.models.recordings import _user_errors
from heterps_runtime.tracing.cut_tensors import sent_tensors
from heterps_runtime.tracing.matrix_products import ProductLog
from heterps_runtime.tracing.operation_log import (
    ATTENTION,
    ExpertsCall,
    Operation,
    OperationLog,
    is_plain,
    memory_of,
    num_bytes,
    tensors_of,
)
from heterps_runtime.tracing.scans import scans_at_once
from heterps_runtime.tracing.tensor_splits import SplitParameter, split_parameters, tensor_splits

# A flash kernel recomputes the attention matrix in its backward pass: five products instead of two.
FLASH_BACKWARD_FACTOR = 2.5


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
    charged as a flash kernel, the loss to the last layer.

    Args:
        module: From `build_module(source, dtype=dtype)`.
        source: What it takes and what its loss is.
        name: Name of the profile.
        dtype: Of the job.

    Raises:
        HeterpsError: Its forward pass fails.
    """
    recorder, costs, batch_size = _traced(module, source, dtype)
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
    recorder, costs, _ = _traced(module, source, dtype)
    layers = layers_of(recorder.recording)
    storages = recorder.parameter_storages
    return TracedSplit(
        recorder.recording, layers, split_parameters(module, layers, costs.log, storages)
    )


def _traced(module: nn.Module, source: ModelSource, dtype: Dtype) -> tuple[Recorder, _Costs, int]:
    """One pass, what was counted, and of how many samples."""
    # Batch normalisation refuses one value for each channel.
    has_batch_norm = any(
        isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()
    )
    batch_size = 2 if has_batch_norm else 1
    recorder = Recorder(module)
    costs = _Costs(is_mixed(dtype), ProductLog(batch_size, recorder))
    hooks = _count_deferred(module, recorder, costs) + _note_experts(module, recorder, costs)
    try:
        _run(recorder, costs, source, batch_size, dtype)
    finally:
        for hook in hooks:
            hook.remove()
    return recorder, costs, batch_size


class _Costs:
    """Running sums for each unit call.

    Attributes:
        is_mixed: The forward pass runs under autocast.
        products: Matrix products and kernels of the forward pass.
        copies: Identify the memory of the copies that it made of parameters.
        uncounted: Operations without a formula.
        log: Every operation.
    """

    def __init__(self, is_mixed: bool, products: ProductLog) -> None:
        self.is_mixed, self.copies, self.products = is_mixed, set[int](), products
        self.cast_bytes: dict[int, float] = {}
        self.forward_flops: dict[int, float] = {}
        self.backward_flops: dict[int, float] = {}
        self.traffic_bytes: dict[int, float] = {}
        self.activation_bytes: dict[int, float] = {}
        self.shared_bytes: dict[int, float] = {}
        self.deferred_bytes: dict[int, float] = {}
        # Storage of what follows from the sample -> the calls that keep it for the backward pass.
        self.savers: dict[int, set[int]] = {}
        self.uncounted = UncountedOperations()
        self.log = OperationLog()


class _Counter(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Charges FLOPs and memory traffic of every operation."""

    def __init__(self, recorder: Recorder, costs: _Costs) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._recorder, self._costs = recorder, costs

    def current_call(self) -> int:
        """Number of the unit call that the running operation belongs to."""
        node = torch._C._current_autograd_node()
        if node is None:
            return self._recorder.cursor
        return bisect.bisect_right(self._recorder.recording.sequence_ends, node._sequence_nr())

    def is_parameter(self, tensor: Tensor) -> bool:
        """Whether a tensor is a parameter, or a view or a copy of one."""
        storage = tensor.untyped_storage()._cdata
        return storage in self._recorder.parameter_storages or storage in self._costs.copies

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        # In a forward pass the recorder comes next, which does the same.
        result = call_fake(func, args, kwargs)
        if func.namespace == "prim":
            return result
        call, is_backward = self.current_call(), torch._C._current_autograd_node() is not None
        if not is_backward:
            self._costs.products.note(call, func, args, kwargs, result)
        flops = flops_of(func, args, kwargs, result)
        if flops is None:
            self._costs.uncounted.note(func)
        else:
            self.charge(call, is_backward, flops)
        if self._costs.is_mixed and is_copy(func) and self.is_parameter(args[0]):
            self._costs.copies.add(result.untyped_storage()._cdata)
            num_bytes = result.numel() * result.element_size()
            self._costs.cast_bytes[call] = self._costs.cast_bytes.get(call, 0.0) + num_bytes
        moved: list[Tensor] = []
        if not is_backward and not func.is_view:
            tensors = {id(t): t for t in tensors_of(args, kwargs, result)}.values()
            if not all(map(self._recorder.is_constant, tensors)):
                moved = [tensor for tensor in tensors if not self.is_parameter(tensor)]
                self._costs.traffic_bytes[call] = self._costs.traffic_bytes.get(call, 0.0) + sum(
                    t.numel() * t.element_size() for t in moved
                )
        read = tensors_of(args, kwargs)
        name, made = func._schema.name, tensors_of(result)
        self.note(call, is_backward, name, is_plain(func), flops or 0.0, read, made, moved)
        return result

    def note(
        self,
        call: int,
        is_backward: bool,
        name: str,
        is_plain: bool,
        flops: float,
        read: tuple[Tensor, ...],
        made: tuple[Tensor, ...],
        moved: Sequence[Tensor] = (),
    ) -> None:
        """Logs an operation."""
        follows = tuple(not is_backward and self.follows(tensor) for tensor in read)
        traffic = tuple((memory_of(tensor), num_bytes(tensor)) for tensor in moved)
        self._costs.log.operations.append(
            Operation(call, is_backward, name, is_plain, flops, read, made, follows, traffic)
        )

    def follows(self, tensor: Tensor) -> bool:
        """Whether a tensor follows from the sample by differentiable steps."""
        is_float = tensor.is_floating_point() and not self.is_parameter(tensor)
        return is_float and not self._recorder.is_constant(tensor)

    def note_attention(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Logs the products of one attention kernel of the forward pass."""
        self._costs.products.note_attention(self.current_call(), query, key, value)

    def charge(self, call: int, is_backward: bool, flops: float) -> None:
        """Adds FLOPs to a call."""
        sums = self._costs.backward_flops if is_backward else self._costs.forward_flops
        sums[call] = sums.get(call, 0.0) + flops


class _FlashAttention(torch.autograd.Function):
    """Costs of a flash attention kernel (Dao et al., 2022).

    Saves query, key, value, output, a number for each row of the attention matrix, and the mask.
    """

    @staticmethod
    def forward(
        ctx: Any,
        counter: _Counter,
        recorder: Recorder,
        mask: Tensor | None,
        query: Tensor,
        key: Tensor,
        value: Tensor,
    ) -> Tensor:
        flops = 2.0 * query.numel() * key.shape[-2] + 2.0 * (
            query.numel() // query.shape[-1] * key.shape[-2] * value.shape[-1]
        )
        counter.charge(counter.current_call(), False, flops)
        counter.note_attention(query, key, value)
        ctx.counter, ctx.flops = counter, flops
        # As the kernels do: heads lie inside of positions, so that joining them copies nothing.
        *batch, positions, _ = query.transpose(-2, -3).shape if query.dim() > 3 else query.shape
        output = query.new_empty((*batch, positions, value.shape[-1]))
        if query.dim() > 3:
            output = output.transpose(-2, -3)
        logsumexp = query.new_empty(query.shape[:-1], dtype=torch.float32)
        recorder.derive(output, query, key, value)
        recorder.derive(logsumexp, query, key)
        made = (output, logsumexp)
        counter.note(
            counter.current_call(), False, ATTENTION, False, flops, (query, key, value), made
        )
        # A mask that came over a cut counts where it came from.
        own_mask = mask if mask is not None and recorder.is_constant(mask) else None
        ctx.save_for_backward(query, key, value, output, logsumexp, own_mask)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        query, key, value, *_ = ctx.saved_tensors
        counter, flops = ctx.counter, FLASH_BACKWARD_FACTOR * ctx.flops
        counter.charge(counter.current_call(), True, flops)
        made = torch.empty_like(query), torch.empty_like(key), torch.empty_like(value)
        counter.note(
            counter.current_call(), True, ATTENTION, False, flops, (query, key, value), made
        )
        return None, None, None, *made


class _FlashMode(TorchFunctionMode):
    """Replaces scaled dot-product attention by `_FlashAttention`, where a kernel can do it."""

    def __init__(self, counter: _Counter, recorder: Recorder) -> None:
        super().__init__()
        self._counter, self._recorder = counter, recorder

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            mask = args[3] if len(args) > 3 else kwargs.get("attn_mask")
            if mask is not None and mask.requires_grad:
                # Flash kernels make no gradient of what is added to scores, as T5's distances of
                # positions: CPUs then compute step by step, and keep the matrix.
                with sdpa_kernel(SDPBackend.MATH):
                    return func(*args, **kwargs)
            names = ("query", "key", "value")[len(args) :]
            tensors = (*args[:3], *(kwargs[name] for name in names))
            if (target := autocast_format(tensors[0])) is not None:
                tensors = tuple(tensor.to(target) for tensor in tensors)
            return _FlashAttention.apply(  # type: ignore[no-untyped-call]
                self._counter, self._recorder, mask, *tensors
            )
        return func(*args, **kwargs)


def _run(
    recorder: Recorder, costs: _Costs, source: ModelSource, batch_size: int, dtype: Dtype
) -> None:
    """One forward and backward pass with everything counted."""
    counter = _Counter(recorder, costs)
    seen: set[tuple[int, int]] = set()
    alive = []

    def pack(tensor: Tensor) -> Tensor:
        storage, call = tensor.untyped_storage(), recorder.cursor
        is_constant, size = recorder.is_constant(tensor), storage.nbytes()
        if is_constant:
            # Counts for every layer that keeps it, as a stage may begin with any of these.
            size = min(size, tensor.numel() * tensor.element_size())
        key = (storage._cdata, call if is_constant else -1)
        if not is_constant:
            costs.savers.setdefault(storage._cdata, set()).add(call)
        if key not in seen and not counter.is_parameter(tensor):
            seen.add(key)
            alive.append(storage)
            sums = costs.shared_bytes if is_constant else costs.activation_bytes
            sums[call] = sums.get(call, 0) + size
            log = costs.log.shared if is_constant else costs.log.saved
            log.append((call, storage._cdata, size))
        return tensor

    args, kwargs = arguments(source, meta_inputs(source, batch_size), dtype)
    with _user_errors(source, batch_size), ExitStack() as stack:
        stack.enter_context(torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor))
        stack.enter_context(_FlashMode(counter, recorder))
        stack.enter_context(scans_at_once())
        with autocast(dtype, "cpu"):
            output = recorder.run(args, kwargs, inner=counter)
        with recorder.fake_mode, counter:
            if source.target is None:
                loss = output.float().sum()
            else:
                shape = (batch_size, *source.target.shape)
                target = torch.zeros(shape, dtype=getattr(torch, source.target.dtype))
                loss = loss_sum(source, output, target)
            if loss.requires_grad:
                loss.backward()  # type: ignore[no-untyped-call]


def _layer_profiles(
    module: nn.Module,
    recording: Recording,
    layers: tuple[Layer, ...],
    costs: _Costs,
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
        yield LayerProfile(
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
        for name in layer.parameters:
            owner.setdefault(name, layer.name)


def _count_deferred(module: nn.Module, recorder: Recorder, costs: _Costs) -> list[RemovableHandle]:
    """Hooks that note what the jobs of `heterps_runtime.stages.deferred_gradients` will hold."""
    entered: dict[int, torch.UntypedStorage] = {}  # alive, so that no number comes twice

    def note(part: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        storage, entering = args[0].untyped_storage(), 0
        leaving = output.numel() * output.element_size()
        target = autocast_format(args[0])
        if target not in (None, args[0].dtype):
            entering = args[0].numel() * target.itemsize  # a copy of its own
        elif storage._cdata not in entered:
            entered[storage._cdata] = storage
            entering = storage.nbytes()  # of a view, all that it keeps
        call = recorder.cursor
        costs.deferred_bytes[call] = costs.deferred_bytes.get(call, 0.0) + entering + leaving
        costs.log.deferred.append((call, storage._cdata, float(entering)))
        costs.log.deferred.append((call, memory_of(output), float(leaving)))

    return [part.register_forward_hook(note) for part in module.modules() if is_linear_layer(part)]


def _note_experts(module: nn.Module, recorder: Recorder, costs: _Costs) -> list[RemovableHandle]:
    """Hooks that log what modules read and make that hold experts as one parameter."""
    names = canonical_names(module)
    held = {
        part: frozenset(
            names[id(parameter)]
            for parameter in part.parameters(recurse=False)
            if parameter.dim() == 3
        )
        for part in module.modules()
    }

    def note(part: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        read = tuple(
            tensor
            for tensor in tensors_of(args, kwargs)
            if tensor.is_floating_point() and not recorder.is_constant(tensor)
        )
        costs.log.experts.append(ExpertsCall(recorder.cursor, held[part], read, tensors_of(output)))

    return [part.register_forward_hook(note, with_kwargs=True) for part, own in held.items() if own]


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
    recorder: Recorder, costs: _Costs, layers: tuple[Layer, ...]
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
