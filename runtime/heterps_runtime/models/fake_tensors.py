"""Fake tensors: operations that torch knows on them in part only, and what values depend on."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from heterps_runtime.models.recording import UnitOutput

# Of an operation that fails torch logs a traceback of fifty lines: the error itself says what a
# user needs, and `--debug` shows where it comes from.
logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)

# Operations that torch knows on fake tensors for fewer formats than its kernels do.
_ONLY_BFLOAT16 = frozenset({"aten::_grouped_mm"})

# Operations whose result has the shape of their argument, but not its values.
VALUE_FREE = frozenset(
    f"aten::{name}"
    for name in (
        *(f"{prefix}_like" for prefix in ("empty", "zeros", "ones", "full", "rand", "randn")),
        *(f"new_{suffix}" for suffix in ("empty", "zeros", "ones", "full", "empty_strided")),
        "randint_like",
    )
)

FLOAT_INPUT = "<float input>"

# What a value depends on: outputs of calls, parameters by name, `FLOAT_INPUT`.
Labels = frozenset[UnitOutput | str]
NO_LABELS: Labels = frozenset()


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


def written_tensors(operation: Any, args: Any, kwargs: Any) -> Iterator[Tensor]:
    """The arguments that an operation writes into."""
    for position, argument in enumerate(operation._schema.arguments):
        if argument.alias_info is None or not argument.alias_info.is_write:
            continue
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor):
                yield tensor


def unit_outputs(labels: Iterable[UnitOutput | str]) -> frozenset[UnitOutput]:
    """Those that are outputs of calls."""
    return frozenset(label for label in labels if isinstance(label, UnitOutput))


def parameter_names(labels: Iterable[UnitOutput | str]) -> set[str]:
    """Those that are parameters."""
    return {label for label in labels if isinstance(label, str) and label != FLOAT_INPUT}


class TensorLabels:
    """What the values of the tensors of one pass depend on.

    Tensors and their memory are kept, so that none gets the identity of another.
    """

    def __init__(self) -> None:
        self._alive: list[Any] = []
        self._labels: dict[int, Labels] = {}
        self._aliases: dict[int, set[int]] = {}

    def of(self, tensor: Tensor) -> Labels:
        """What a tensor depends on; of an unknown one, what all tensors in its memory do."""
        found = self._labels.get(id(tensor))
        if found is not None:
            return found
        aliases = self._aliases.get(tensor.untyped_storage()._cdata, ())
        return NO_LABELS.union(*(self._labels[alias] for alias in aliases))

    def of_all(self, tensors: Iterable[Tensor]) -> Labels:
        """What any of some tensors depends on."""
        return NO_LABELS.union(*map(self.of, tensors))

    def own(self, tensor: Tensor) -> Labels:
        """What was set for the tensor itself."""
        return self._labels.get(id(tensor), NO_LABELS)

    def set(self, tensor: Tensor, labels: Labels) -> None:
        """Says what a tensor depends on."""
        self._alive.append(tensor)
        storage = tensor.untyped_storage()
        self._alive.append(storage)
        self._labels[id(tensor)] = labels
        self._aliases.setdefault(storage._cdata, set()).add(id(tensor))

    def add(self, tensor: Tensor, labels: Labels) -> None:
        """A write into a tensor changes every tensor that shares its memory."""
        for alias in self._aliases.get(tensor.untyped_storage()._cdata, ()):
            self._labels[alias] |= labels
