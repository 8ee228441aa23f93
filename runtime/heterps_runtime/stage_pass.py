"""A forward pass of a stage: which calls of the model compute, which replay, and where it ends."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only, tree_unflatten
from torch.utils.checkpoint import checkpoint

from heterps_runtime.memory_ledger import MemoryLedger
from heterps_runtime.recording import Call, Recording, TensorSpec, UnitOutput, units_of


class _StageDoneError(Exception):
    """Ends the forward pass behind the stage's last unit; never leaves this module."""


class StagePass:
    """Steers one forward pass: which calls compute, which replay, and where it ends.

    Attributes:
        collected: Outputs of the stage's own calls that cross its back cut.
    """

    def __init__(
        self,
        module: nn.Module,
        recording: Recording,
        own: range,
        wanted: frozenset[UnitOutput],
        recomputed: frozenset[int],
    ) -> None:
        self.collected: dict[UnitOutput, Tensor] = {}
        self._wanted, self._recomputed = wanted, recomputed
        self._own, self._is_last = own, own.stop == len(recording.calls)
        self._numbers = {
            (call.path, call.occurrence): number for number, call in enumerate(recording.calls)
        }
        self._count: dict[str, int] = {}
        self._inside = False
        self._recording = recording
        self._arrived: dict[UnitOutput, Tensor] = {}
        for path, unit in units_of(module).items():
            if any(path == known for known, _ in self._numbers):
                unit.forward = self._gate(path, unit.forward)

    def run(
        self,
        call_arguments: tuple[tuple[Tensor, ...], dict[str, Tensor]],
        module: nn.Module,
        recording: Recording,
        arrived: dict[UnitOutput, Tensor],
    ) -> Any:
        """The model's output where the stage is the last one, else None."""
        self.collected = {}
        self._count, self._inside, self._recording = {}, False, recording
        self._arrived = {
            source: self._as_input(source, tensor) for source, tensor in arrived.items()
        }
        args, kwargs = call_arguments
        try:
            return module(*args, **kwargs)
        except _StageDoneError:
            return None
        finally:
            self._arrived = {}

    def _as_input(self, source: UnitOutput, tensor: Tensor) -> Tensor:
        if tensor.requires_grad:
            tensor = cast(Tensor, _ContiguousGradient.apply(tensor))  # type: ignore[no-untyped-call]
        overwritten = source.leaf in self._recording.calls[source.call].overwritten
        return tensor.clone() if overwritten else tensor

    def _gate(self, path: str, forward: Callable[..., Any]) -> Callable[..., Any]:
        def gated(*args: Any, **kwargs: Any) -> Any:
            if self._inside:
                return forward(*args, **kwargs)
            occurrence = self._count[path] = self._count.get(path, 0) + 1
            number = self._numbers.get((path, occurrence))
            if number is None:
                return forward(*args, **kwargs)
            if number not in self._own:
                return self._replay(number)
            if number in self._recomputed:
                output = self._run_recomputed(forward, args, kwargs)
            else:
                output = self._run(forward, args, kwargs)
            if not self._is_last:
                self._collect(number, output)
            return output

        return gated

    def _run(
        self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        self._inside = True
        try:
            return forward(*args, **kwargs)
        finally:
            self._inside = False

    def _run_recomputed(
        self, forward: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A call that keeps its inputs only; the backward pass calls `forward` once more."""
        # What the call, or one behind it, writes into must be what it was the second time.
        is_overwritten = any(call.overwritten for call in self._recording.calls)

        def run() -> Any:
            inputs = args, kwargs
            if is_overwritten:
                inputs = tree_map_only(Tensor, torch.clone, inputs)
            try:
                return self._run(forward, *inputs)
            finally:
                # Torch leaves a second pass by an exception, as soon as it has what it needs.
                if MemoryLedger.active is not None and _is_backward():
                    MemoryLedger.active.keep_recomputed()

        return checkpoint(run, use_reentrant=False)

    def _replay(self, number: int) -> Any:
        """What a call in front of the stage returned, with the received tensors in their places."""
        call = self._recording.calls[number]
        assert number < self._own.start, f"{call.name} is called behind the stage"
        device = next(iter(self._arrived.values())).device
        leaves = [
            self._leaf(call, UnitOutput(number, index), leaf, device)
            for index, leaf in enumerate(call.leaves)
        ]
        return tree_unflatten(leaves, call.structure)

    def _leaf(self, call: Call, source: UnitOutput, leaf: Any, device: torch.device) -> Any:
        if not isinstance(leaf, TensorSpec):
            return leaf
        if source in self._arrived:
            return self._arrived[source]
        zeros = zeros_of(leaf, device)
        return zeros.contiguous() if source.leaf in call.overwritten else zeros

    def _collect(self, number: int, output: Any) -> None:
        for index, leaf in enumerate(tree_leaves(output)):
            if UnitOutput(number, index) in self._wanted:
                self.collected[UnitOutput(number, index)] = leaf
        if number == self._own.stop - 1:
            raise _StageDoneError


class _ContiguousGradient(torch.autograd.Function):
    """Identity whose gradient is contiguous: gloo refuses, and NCCL garbles, any other."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.view_as(tensor)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0].contiguous()


def zeros_of(spec: TensorSpec, device: torch.device | str) -> Tensor:
    """Zeros that take the memory of one number."""
    return torch.zeros((), dtype=spec.dtype, device=device).expand(spec.shape)


def _is_backward() -> bool:
    return torch._C._current_autograd_node() is not None
