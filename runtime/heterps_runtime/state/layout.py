"""State by name: what belongs to a parameter or buffer, and the keys that checkpoints give it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from heterps_runtime.models.dtypes import TorchDtype

VALUE = "value"  # key of the parameter or buffer itself, beside the keys of the optimizer state
_MODEL, _OPTIMIZER = "model.", "optimizer."

State = dict[str, dict[str, Tensor]]  # name in the whole model -> key -> tensor


class TensorLayout(NamedTuple):
    """One tensor of a parameter or buffer: `VALUE` or a key of the optimizer's state."""

    key: str
    shape: tuple[NonNegativeInt, ...]
    dtype: TorchDtype

    @property
    def num_bytes(self) -> int:
        """Bytes that the tensor takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    def blank(self) -> Tensor:
        """Uninitialised memory of a CPU."""
        return torch.empty(self.shape, dtype=self.dtype)


Layouts = dict[str, tuple[TensorLayout, ...]]  # by name in the whole model


def layouts_of(state: Mapping[str, Mapping[str, Tensor]]) -> Layouts:
    """What a state consists of."""
    return {
        name: tuple(TensorLayout(key, tuple(t.shape), t.dtype) for key, t in tensors.items())
        for name, tensors in state.items()
    }


def blank_state(layouts: Mapping[str, Iterable[TensorLayout]]) -> State:
    """Uninitialised memory for a state."""
    return {
        name: {layout.key: layout.blank() for layout in entries}
        for name, entries in layouts.items()
    }


def without_value(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The optimizer's part of the state of one name."""
    return {key: tensor for key, tensor in tensors.items() if key != VALUE}


def state_bytes(state: Mapping[str, Mapping[str, Tensor]]) -> int:
    """Bytes of all tensors of a state."""
    return sum(tensor.nbytes for tensors in state.values() for tensor in tensors.values())


def checkpoint_key(name: str, key: str) -> str:
    """What a checkpoint calls one tensor of a state."""
    return _MODEL + name if key == VALUE else f"{_OPTIMIZER}{name}.{key}"


def is_checkpoint_key(text: str) -> bool:
    """Whether a checkpoint can have a tensor of this name."""
    return text.startswith(_MODEL) or (
        text.startswith(_OPTIMIZER) and "." in text.removeprefix(_OPTIMIZER)
    )


def split_checkpoint_key(text: str) -> tuple[str, str]:
    """Name in the whole model, and key in its state."""
    assert is_checkpoint_key(text), text
    if text.startswith(_MODEL):
        return text.removeprefix(_MODEL), VALUE
    name, _, key = text.removeprefix(_OPTIMIZER).rpartition(".")
    return name, key


def keys_by_name(keys: Iterable[str]) -> dict[str, dict[str, str]]:
    """Of a checkpoint: name in the whole model -> key of its state -> key in the checkpoint."""
    found: dict[str, dict[str, str]] = {}
    for text in keys:
        name, key = split_checkpoint_key(text)
        found.setdefault(name, {})[key] = text
    return found


def state_of_keys(tensors: Mapping[str, Tensor]) -> State:
    """Tensors by their keys in a checkpoint, as a state."""
    return {
        name: {key: tensors[text] for key, text in keys.items()}
        for name, keys in keys_by_name(tensors).items()
    }
