"""From samples to a batch: tensors, numbers and arrays are stacked, whatever holds them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from heterps_configs.errors import HeterpsError

Collate = Callable[[list[Any]], Any]


def collate_samples(samples: list[Any]) -> Any:
    """Stacks samples that are alike; mappings and tuples keep their form.

    Numbers become float32 or int64. What is missing (None) in one sample is missing in all.

    Raises:
        HeterpsError: Samples differ in form or shape, or hold something that is no number.
    """
    first = samples[0]
    if isinstance(first, Mapping):
        return {key: collate_samples([sample[key] for sample in samples]) for key in first}
    if isinstance(first, tuple) or (isinstance(first, list) and _holds_tensors(first)):
        return tuple(collate_samples(list(column)) for column in zip(*samples, strict=True))
    if first is None:
        return None
    tensors = [as_tensor(sample) for sample in samples]
    shapes = sorted({tuple(tensor.shape) for tensor in tensors})
    if len(shapes) > 1:
        raise HeterpsError(
            f"data: samples of one batch have the shapes {shapes[0]} and {shapes[1]}; pad them, or "
            "give a `collate`"
        )
    return torch.stack(tensors)


def as_tensor(value: Any) -> Tensor:
    """A tensor of a number, a list of numbers, an array or a tensor.

    Raises:
        HeterpsError: It is none of them.
    """
    if isinstance(value, Tensor):
        return value
    try:
        tensor = torch.as_tensor(value)
    except (TypeError, ValueError, RuntimeError):
        raise HeterpsError(
            f"data: a sample holds {type(value).__name__}, of which no tensor can be made; convert "
            "it in the data set, or give a `collate`"
        ) from None
    is_plain = not isinstance(value, np.generic | np.ndarray)
    return tensor.float() if is_plain and tensor.is_floating_point() else tensor


def _holds_tensors(values: Sequence[Any]) -> bool:
    return any(isinstance(value, Tensor | np.ndarray) for value in values)
