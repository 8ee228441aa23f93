"""Operations without data: on fake tensors, and where a constructor asks for much memory."""

from __future__ import annotations

from math import prod
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves, tree_map_only

# Numbers of a tensor that are not worth a value: of random ones or none, and of constants.
_MANY, _VERY_MANY = 2**20, 2**26
_ARBITRARY = (torch.empty, torch.rand, torch.randn)
_CONSTANT = (torch.zeros, torch.ones)
_ONLY_BFLOAT16 = frozenset({"aten::_grouped_mm"})


def call_fake(operation: Any, args: Any, kwargs: Any) -> Any:
    """Calls an operation; where only bfloat16 has shapes, by way of that.

    A single random number is 0.5: models ask for one to skip layers, and none is skipped here.
    """
    if operation._schema.name == "aten::rand" and list(args[0]) == []:
        return torch.tensor(0.5)
    if operation._schema.name not in _ONLY_BFLOAT16 or args[0].dtype == torch.bfloat16:
        return operation(*args, **kwargs)

    def converted(tensor: Tensor) -> Tensor:
        return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor

    own = args[0].dtype
    args, kwargs = tree_map_only(Tensor, converted, (args, kwargs))
    return operation(*args, **kwargs).to(own)


class LargeOnMeta(TorchFunctionMode):
    """Large tensors that a constructor makes have shapes and no memory."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in _ARBITRARY or func in _CONSTANT:
            most = _MANY if func in _ARBITRARY else _VERY_MANY
            sizes = tree_leaves((args, kwargs.get("size")))
            is_here = kwargs.get("device") is None or torch.device(kwargs["device"]).type == "cpu"
            numbers = [size for size in sizes if isinstance(size, int)]
            if is_here and numbers and prod(numbers) >= most:
                kwargs = {**kwargs, "device": "meta", "pin_memory": False}
        return func(*args, **kwargs)


def is_without_memory(module: nn.Module) -> bool:
    """Whether a tensor that is no parameter has lost its values."""
    attributes = (value for part in module.modules() for value in vars(part).values())
    return any(
        isinstance(tensor, Tensor) and tensor.is_meta for tensor in (*module.buffers(), *attributes)
    )
