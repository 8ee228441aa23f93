"""Dropout in a split region: a rank's part of the numbers that one process would draw.

So a group drops what one device drops. Attention kernels of GPUs that drop by themselves draw their
own numbers on each rank.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from heterps_envs.layer_costs.group_slice import GroupSlice
from heterps_runtime.models.random_numbers import draws_numbers
from heterps_runtime.tensor_parallel.parameter_split import ParameterSplit, SplitDraw


def sliced_draws(
    forward: Callable[..., Any], draws: Sequence[SplitDraw | None], group: GroupSlice
) -> Callable[..., Any]:
    """A forward pass whose random numbers are parts of whole tensors.

    Args:
        forward: Draws as often as `draws` has entries.
        draws: How each is split.
        group: The rank's place.
    """

    def sliced(*args: Any, **kwargs: Any) -> Any:
        with _Draws(draws, group):
            return forward(*args, **kwargs)

    return sliced


def split_draw(
    whole: Sequence[int],
    part: Sequence[int],
    plan: Mapping[str, ParameterSplit],
    unit: str,
    group: GroupSlice,
) -> SplitDraw | None:
    """How the random numbers of a unit are split, from both shapes; None where they are not.

    Args:
        whole: Shape of what one process draws.
        part: Shape of a rank's.
        plan: How parameters are split.
        unit: Of the model.
        group: The rank's place.
    """
    dims = [dim for dim, pair in enumerate(zip(whole, part, strict=True)) if pair[0] != pair[1]]
    if len(dims) != 1:
        return None
    (dim,) = dims
    for name, split in plan.items():
        if not unit or name.startswith(f"{unit}."):
            draw = SplitDraw(
                dim=dim,
                size=whole[dim],
                num_units=split.num_units,
                key_value_heads=split.key_value_heads,
            )
            start, stop = draw.range_of(group)
            if whole[dim] % split.num_units == 0 and part[dim] == stop - start:
                return draw
    return None


class _Draws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    def __init__(self, draws: Sequence[SplitDraw | None], group: GroupSlice) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._rest, self._group = iter(draws), group

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not draws_numbers(func, args, kwargs):
            return func(*args, **kwargs)
        draw = next(self._rest, None)
        if draw is None:
            return func(*args, **kwargs)
        start, stop = draw.range_of(self._group)
        size = stop - start
        tensor: Tensor = args[0]
        name = func._schema.name
        if name == "aten::bernoulli_":
            whole = func(_whole(tensor, draw), *args[1:], **kwargs)
            return tensor.copy_(whole.narrow(draw.dim, start, size))
        if name == "aten::native_dropout":
            dropped = func(_whole(tensor, draw).fill_(1.0), *args[1:], **kwargs)
            scale, mask = (each.narrow(draw.dim, start, size) for each in dropped)
            return tensor * scale, mask.contiguous()
        return func(*args, **kwargs)


def _whole(part: Tensor, draw: SplitDraw) -> Tensor:
    """Memory for the whole of a tensor, laid out as the part is."""
    shape = list(part.shape)
    shape[draw.dim] = draw.size
    strides = part.stride()
    order = sorted(range(part.dim()), key=lambda dim: -strides[dim])
    return torch.empty_permuted(shape, order, dtype=part.dtype, device=part.device)
