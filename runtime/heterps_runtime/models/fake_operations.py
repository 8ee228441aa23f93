"""Operations on fake tensors, those included that torch knows there only in part."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

# Operations that torch knows on fake tensors for fewer formats than its kernels do.
_ONLY_BFLOAT16 = frozenset({"aten::_grouped_mm"})


def call_fake(operation: Any, args: Any, kwargs: Any) -> Any:
    """Calls an operation; where only bfloat16 has shapes, by way of that.

    A single random number is 0.5: models ask for one to skip layers, and none is skipped here.
    """
    name = operation._schema.name
    if name == "aten::rand" and list(args[0]) == []:
        return torch.tensor(0.5)
    if name == "aten::_ctc_loss":
        return _aligned(*args[:4])
    if name == "aten::_ctc_loss_backward":
        return torch.empty_like(args[1])
    if name not in _ONLY_BFLOAT16 or args[0].dtype == torch.bfloat16:
        return operation(*args, **kwargs)

    def converted(tensor: Tensor) -> Tensor:
        return tensor.to(torch.bfloat16) if tensor.is_floating_point() else tensor

    own = args[0].dtype
    args, kwargs = tree_map_only(Tensor, converted, (args, kwargs))
    return operation(*args, **kwargs).to(own)


def _aligned(
    log_probabilities: Tensor, targets: Tensor, frames: list[int], letters: list[int]
) -> tuple[Tensor, Tensor]:
    """Losses of a sum over alignments, and what it keeps: a blank stands around each letter."""
    size = log_probabilities.shape[1]
    kept = (size, log_probabilities.shape[0], 2 * max(letters) + 1)
    return log_probabilities.new_empty(size), log_probabilities.new_empty(kept)
