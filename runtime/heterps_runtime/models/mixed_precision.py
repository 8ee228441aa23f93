"""Mixed precision and TF32: what products are computed in, where parameters are float32.

Mixed precision runs forward passes under torch's autocast to bfloat16. What autocast computes in
bfloat16 and what it leaves in float32 is torch's choice, by operation
(https://docs.pytorch.org/docs/stable/amp.html); its lists differ a little between CPU and CUDA. A
backward pass needs no context: it computes in the formats of its forward pass.

Autocast makes a copy in bfloat16 of each weight that it needs. Such a copy is made once in a step,
and shared by all its micro-batches: their graphs would otherwise hold one each.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from heterps_configs.documents.base import Dtype, compute_format, is_mixed

# Copies of the weights of layers that put off their gradients, while some step goes on.
_COPIES: dict[nn.Parameter, Tensor] = {}


def use_tensor_cores(dtype: Dtype, device_type: str) -> None:
    """Lets a GPU compute float32 products in TF32 in this process, where the job says `tf32`.

    A CPU goes on in float32. Jobs in other formats change nothing: a user may have set it.
    """
    if dtype == "tf32" and device_type == "cuda":
        torch.set_float32_matmul_precision("high")


def autocast(dtype: Dtype, device_type: str) -> AbstractContextManager[Any]:
    """The context of a forward pass; one without effect where all is in one format.

    Args:
        dtype: Of the job.
        device_type: `cpu` or `cuda`.
    """
    if not is_mixed(dtype):
        return nullcontext()
    return torch.autocast(device_type, dtype=getattr(torch, compute_format(dtype)))


class SharedCopies:
    """Keeps copies of weights for all forward passes of a step.

    Args:
        dtype: Of the job; without mixed precision there are no copies.
    """

    _num_holders = 0

    def __init__(self, dtype: Dtype) -> None:
        self._is_mixed, self._holds = is_mixed(dtype), False

    def hold(self) -> None:
        """Copies that are made from now on stay."""
        if self._is_mixed and not self._holds:
            # Torch drops its copies when the outermost context is left.
            torch.autocast_increment_nesting()
            SharedCopies._num_holders += 1
            self._holds = True

    def release(self) -> None:
        """Drops them, before the weights change.

        Where several devices share a process, all copies go with the last one's; no device runs
        another step before.
        """
        if self._holds:
            self._holds = False
            torch.autocast_decrement_nesting()
            SharedCopies._num_holders -= 1
            if SharedCopies._num_holders == 0:
                torch.clear_autocast_cache()
                _COPIES.clear()

    @classmethod
    def copy_of(cls, parameter: nn.Parameter, target: torch.dtype) -> Tensor:
        """A copy without a graph, for operations that make the gradient themselves."""
        found = _COPIES.get(parameter)
        if found is None:
            found = parameter.detach().to(target)
            if cls._num_holders:
                _COPIES[parameter] = found
        return found


def autocast_format(tensor: Tensor) -> torch.dtype | None:
    """What autocast computes in where the tensor is; None outside of it."""
    kind = tensor.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None


class CopyWatch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the copies that autocast makes of some tensors while it is entered.

    Args:
        parameters: Whose copies count.

    Attributes:
        copies: All of them, alive.
    """

    def __init__(self, parameters: list[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.copies: list[Tensor] = []
        self._storages = {tensor.untyped_storage()._cdata for tensor in parameters}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs one operation; notes what it made where it copies a parameter."""
        result = func(*args, **(kwargs or {}))
        if is_copy(func) and args[0].untyped_storage()._cdata in self._storages:
            self.copies.append(result)
        return result


def is_copy(operation: Any) -> bool:
    """Whether an operation copies a tensor into another format."""
    return operation is torch.ops.aten._to_copy.default
