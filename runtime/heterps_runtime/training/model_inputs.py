"""What a data set gives, as a model's inputs and target: names, shapes and formats."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from heterps_configs.documents.model.source import InputSpecification, ModelSource
from heterps_configs.errors import HeterpsError
from heterps_runtime.training.collating import as_tensor


def as_inputs(found: Any, source: ModelSource) -> dict[str, Tensor]:
    """Inputs by name. Of a mapping, those that the model takes; of all else, in its order.

    Args:
        found: Of a batch: a tensor, a sequence or a mapping.
        source: Of the model.

    Raises:
        HeterpsError: One is missing, or of another shape or kind.
    """
    expected = [entry.name for entry in source.inputs]
    if isinstance(found, Mapping):
        given = {name: found[name] for name in expected if found.get(name) is not None}
        has = ", ".join(map(str, found))
    else:
        values: Sequence[Any] = found if isinstance(found, tuple | list) else (found,)
        has = str(len(values))
        given = dict(zip(expected, values, strict=False)) if len(values) == len(expected) else {}
    missing = [name for name in expected if name not in given]
    if missing:
        raise HeterpsError(
            f"data: the model takes {', '.join(expected)}, and a sample has {has}; missing: "
            f"{', '.join(missing)}"
        )
    return {entry.name: fitted(given[entry.name], entry, "input") for entry in source.inputs}


def as_target(found: Any, expected: InputSpecification | None) -> Tensor:
    """The target: with a loss of the user's own, whatever it is.

    Args:
        found: Of a batch.
        expected: What the loss of the model's source reads; None for anything.

    Raises:
        HeterpsError: It is of another shape or kind.
    """
    target = as_tensor(found)
    return target if expected is None else fitted(target, expected, "target")


def fitted(found: Any, entry: InputSpecification, what: str) -> Tensor:
    """A tensor of the shape and the format that the model has been traced with.

    Raises:
        HeterpsError: Another shape, or another kind of number.
    """
    tensor, wanted = as_tensor(found), getattr(torch, entry.dtype)
    if tuple(tensor.shape[1:]) != entry.shape:
        raise HeterpsError(
            f"data: {what} {entry.name} of a sample has the shape {tuple(tensor.shape[1:])}; the "
            f"plan's model was traced with {entry.shape}: pad or cut samples to it, or trace the "
            "model with the shape of the samples"
        )
    if tensor.dtype != wanted and tensor.dtype.is_floating_point != wanted.is_floating_point:
        raise HeterpsError(
            f"data: {what} {entry.name} is {tensor.dtype}; the plan's model was traced with "
            f"{entry.dtype}"
        )
    return tensor.to(wanted)
