"""Scaled dot-product attention as a flash kernel does it: its costs, and what it keeps."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import TorchFunctionMode

from heterps_runtime.models.mixed_precision import autocast_format
from heterps_runtime.models.recorder import Recorder
from heterps_runtime.tracing.operation_log import ATTENTION

# A flash kernel recomputes the attention matrix in its backward pass: five products instead of two.
FLASH_BACKWARD_FACTOR = 2.5


class Counter(Protocol):
    """What counts operations."""

    def current_call(self) -> int:
        """Number of the unit call that the running operation belongs to."""
        ...

    def charge(self, call: int, is_backward: bool, flops: float) -> None:
        """Adds FLOPs to a call."""
        ...

    def note_attention(self, query: Tensor, key: Tensor, value: Tensor) -> None:
        """Logs the products of one attention kernel of the forward pass."""
        ...

    def note_matrix(self, like: Tensor, num_bytes: float) -> None:
        """Logs what a CPU keeps of an attention beside what a GPU's kernel keeps.

        Args:
            like: A tensor that a group splits as it splits that.
            num_bytes: Of the whole batch.
        """
        ...

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
        ...


class _FlashAttention(torch.autograd.Function):
    """Costs of a flash attention kernel (Dao et al., 2022).

    Saves query, key, value, output, a number for each row of the attention matrix, and the mask.
    """

    @staticmethod
    def forward(
        ctx: Any,
        counter: Counter,
        recorder: Recorder,
        mask: Tensor | None,
        has_dropout: bool,
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
        if has_dropout:
            counter.note_matrix(logsumexp, _matrix_bytes(query, key, value))
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
        return None, None, None, None, *made


def _matrix_bytes(query: Tensor, key: Tensor, value: Tensor) -> float:
    """What a CPU keeps where attention has dropout, which its flash kernel cannot do.

    Step by step it keeps the matrix, its random mask, and their product, all in float32, as copies
    of its factors are.
    """
    matrix = query.numel() // query.shape[-1] * key.shape[-2]
    size = torch.float32.itemsize
    factors = sum(each.numel() * (size - each.element_size()) for each in (query, key, value))
    return float(3 * matrix * size + factors)


class FlashAttentionMode(TorchFunctionMode):
    """Replaces scaled dot-product attention by `_FlashAttention`, where a kernel can do it."""

    def __init__(self, counter: Counter, recorder: Recorder) -> None:
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
            dropout = args[4] if len(args) > 4 else kwargs.get("dropout_p", 0.0)
            names = ("query", "key", "value")[len(args) :]
            tensors = (*args[:3], *(kwargs[name] for name in names))
            if (target := autocast_format(tensors[0])) is not None:
                tensors = tuple(tensor.to(target) for tensor in tensors)
            return _FlashAttention.apply(  # type: ignore[no-untyped-call]
                self._counter, self._recorder, mask, dropout > 0.0, *tensors
            )
        return func(*args, **kwargs)
