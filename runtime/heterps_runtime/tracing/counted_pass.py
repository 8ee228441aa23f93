"""One pass of a model on fake tensors, with everything counted.

Each operation is charged to the unit that is called, or is about to be called; a backward operation
to the unit whose forward pass made its autograd node.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence
from contextlib import ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.hooks import RemovableHandle

from heterps_configs.documents.base import Dtype, is_mixed
from heterps_configs.documents.model.source import ModelSource
from heterps_runtime.models.build import arguments, meta_inputs
from heterps_runtime.models.fake_tensors import call_fake
from heterps_runtime.models.flop_formulas import UncountedOperations, flops_of, is_linear_layer
from heterps_runtime.models.losses import loss_sum
from heterps_runtime.models.mixed_precision import autocast, autocast_format, is_copy
from heterps_runtime.models.recorder import Recorder
from heterps_runtime.models.recording import canonical_names
from heterps_runtime.models.recordings import _user_errors
from heterps_runtime.tracing.flash_attention import FlashAttentionMode
from heterps_runtime.tracing.matrix_products import ProductLog
from heterps_runtime.tracing.operation_log import (
    ExpertsCall,
    Operation,
    OperationLog,
    is_plain,
    memory_of,
    num_bytes,
    tensors_of,
)
from heterps_runtime.tracing.scans import scans_at_once


def counted_pass(
    module: nn.Module, source: ModelSource, dtype: Dtype
) -> tuple[Recorder, Costs, int]:
    """One pass, what was counted, and of how many samples."""
    # Batch normalisation refuses one value for each channel.
    has_batch_norm = any(
        isinstance(part, nn.modules.batchnorm._BatchNorm) for part in module.modules()
    )
    batch_size = 2 if has_batch_norm else 1
    recorder = Recorder(module)
    costs = Costs(is_mixed(dtype), ProductLog(batch_size, recorder))
    hooks = _count_deferred(module, recorder, costs) + _note_experts(module, recorder, costs)
    try:
        _run(recorder, costs, source, batch_size, dtype)
    finally:
        for hook in hooks:
            hook.remove()
    return recorder, costs, batch_size


class Costs:
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

    def __init__(self, recorder: Recorder, costs: Costs) -> None:
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

    def note_matrix(self, like: Tensor, num_bytes: float) -> None:
        """Logs what a CPU keeps of an attention beside what a GPU's kernel keeps."""
        self._costs.log.matrices.append((self.current_call(), memory_of(like), num_bytes))

    def charge(self, call: int, is_backward: bool, flops: float) -> None:
        """Adds FLOPs to a call."""
        sums = self._costs.backward_flops if is_backward else self._costs.forward_flops
        sums[call] = sums.get(call, 0.0) + flops


def _run(
    recorder: Recorder, costs: Costs, source: ModelSource, batch_size: int, dtype: Dtype
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
        stack.enter_context(FlashAttentionMode(counter, recorder))
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


def _count_deferred(module: nn.Module, recorder: Recorder, costs: Costs) -> list[RemovableHandle]:
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


def _note_experts(module: nn.Module, recorder: Recorder, costs: Costs) -> list[RemovableHandle]:
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
