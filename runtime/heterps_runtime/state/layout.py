"""State by name: what belongs to a parameter or buffer, and the keys that checkpoints give it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import torch
from pydantic import NonNegativeInt
from torch import Tensor

from heterps_runtime.models.dtypes import TorchDtype
from heterps_runtime.tensor_parallel.slices import TensorSlice

VALUE = "value"  # key of the parameter or buffer itself, beside the keys of the optimizer state
_MODEL, _OPTIMIZER = "model.", "optimizer."

State = dict[str, dict[str, Tensor]]  # name in the whole model -> key -> tensor


class TensorLayout(NamedTuple):
    """One tensor of a parameter or buffer: `VALUE` or a key of the optimizer's state.

    Attributes:
        shape: Of what is there.
        place: Of which part of the whole model's tensor that is; None: it is all of it.
    """

    key: str
    shape: tuple[NonNegativeInt, ...]
    dtype: TorchDtype
    place: TensorSlice | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that the tensor takes."""
        return math.prod(self.shape) * self.dtype.itemsize

    @property
    def whole_shape(self) -> tuple[int, ...]:
        """Of the whole model's tensor."""
        return self.shape if self.place is None else self.place.shape

    def part(self, place: TensorSlice | None) -> TensorLayout:
        """The same tensor of a rank that has another part of it."""
        shape = self.whole_shape if place is None else place.local_shape
        return self._replace(shape=shape, place=place)

    def blank(self) -> Tensor:
        """Uninitialised memory of a CPU."""
        return torch.empty(self.shape, dtype=self.dtype)


Layouts = dict[str, tuple[TensorLayout, ...]]  # by name in the whole model


Places = Mapping[str, Mapping[str, TensorSlice]]  # by name and key, of what is a part


class HeldState(NamedTuple):
    """A state of which some tensors are parts of those of the whole model.

    Attributes:
        tensors: What is there.
        places: Of those that are parts, where they belong.
    """

    tensors: State
    places: Places = MappingProxyType({})

    def place(self, name: str, key: str) -> TensorSlice | None:
        """Where a tensor belongs; None: it is the whole one."""
        return self.places.get(name, {}).get(key)

    @property
    def layouts(self) -> Layouts:
        """What it consists of."""
        return layouts_of(self.tensors, self.places)


def layouts_of(
    state: Mapping[str, Mapping[str, Tensor]], places: Places = MappingProxyType({})
) -> Layouts:
    """What a state consists of."""
    return {
        name: tuple(
            TensorLayout(key, tuple(t.shape), t.dtype, places.get(name, {}).get(key))
            for key, t in tensors.items()
        )
        for name, tensors in state.items()
    }


def places_of(layouts: Layouts) -> dict[str, dict[str, TensorSlice]]:
    """Where those tensors belong that are parts."""
    return {
        name: {layout.key: layout.place for layout in entries if layout.place is not None}
        for name, entries in layouts.items()
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
