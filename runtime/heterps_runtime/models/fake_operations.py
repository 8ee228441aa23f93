"""Operations on fake tensors that torch knows for fewer formats than its kernels do."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

_ONLY_BFLOAT16 = frozenset({"aten::_grouped_mm"})


def call_fake(operation: Any, args: Any, kwargs: Any) -> Any:
    """Calls an operation; where only bfloat16 has shapes, by way of that."""
    if operation._schema.name not in _ONLY_BFLOAT16 or args[0].dtype == torch.bfloat16:
        return operation(*args, **kwargs)

    def converted(tensor: Tensor) -> Tensor:
        return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor

    own = args[0].dtype
    args, kwargs = tree_map_only(Tensor, converted, (args, kwargs))
    return operation(*args, **kwargs).to(own)
