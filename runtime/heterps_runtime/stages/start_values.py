"""Where the values of a stage come from: initialisation, a folder of weights, or nowhere yet.

Whatever the source, values appear one tensor (or one small module) after another, for the own
layers only: a rank never holds more than its part of the model and one tensor.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor, nn

from heterps_runtime.models.initialise import initial_values
from heterps_runtime.specification.run import RunSpecification
from heterps_runtime.tensor_parallel.slices import TensorSlice


class StartValues(Protocol):
    """Gives values to the stages of one rank."""

    def parameters(self, module: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
        """Values of some parameters, on the CPU.

        Args:
            module: The whole model, its parameters on the meta device.
            names: Canonical names (a tied parameter has its first name).
        """
        ...

    def fill(self, buffers: Mapping[str, Tensor]) -> None:
        """Writes persistent buffers (running statistics), where the source knows them."""
        ...

    def remarks(self) -> list[str]:
        """What a user should know of the values given so far."""
        ...


def sliced_values(
    start: StartValues,
    module: nn.Module,
    names: Collection[str],
    slices: Mapping[str, TensorSlice],
) -> dict[str, Tensor]:
    """Values of a rank's parameters, of which it holds parts.

    Args:
        start: Gives whole values.
        module: The whole model, its parameters on the meta device.
        names: Canonical names.
        slices: Of those that are split. Their values appear module after module, so that nobody
            holds more than a part and the whole of one module's own parameters.
    """
    if not slices:
        return start.parameters(module, names)
    modules: dict[str, set[str]] = {}
    for name in sorted(names):
        modules.setdefault(name.rpartition(".")[0], set()).add(name)
    values: dict[str, Tensor] = {}
    for own in modules.values():
        for name, value in start.parameters(module, own).items():
            piece = slices.get(name)
            # What another stage of the rank holds is a part already.
            is_whole = piece is not None and tuple(value.shape) == piece.shape
            values[name] = piece.of(value) if piece is not None and is_whole else value
            # A rank's place in the groups of stages that share a parameter is one and the same.
            assert piece is None or tuple(values[name].shape) == piece.local_shape, name
    return values


class Initialised:
    """By the library's own rules, as a function of name and seed."""

    def __init__(self, seed: int) -> None:
        self._seed = seed

    def parameters(self, module: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
        """See `initial_values`."""
        return initial_values(module, names, self._seed)

    def fill(self, buffers: Mapping[str, Tensor]) -> None:
        """They hold what the model's constructor gave them."""

    def remarks(self) -> list[str]:
        """There are none."""
        return []


class Blank:
    """Memory that a checkpoint or another rank will fill."""

    def parameters(self, module: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
        """Parameters without values yet."""
        # `empty_like` of a tensor without storage imports torch's compiler, which takes seconds.
        return {
            name: torch.empty_strided(parameter.shape, parameter.stride(), dtype=parameter.dtype)
            for name, parameter in module.named_parameters()
            if name in names
        }

    def fill(self, buffers: Mapping[str, Tensor]) -> None:
        """They are filled later."""

    def remarks(self) -> list[str]:
        """There are none."""
        return []


class Sharing:
    """What other stages of this rank hold already is not made a second time.

    Args:
        source: Of all other values.
        held: Parameters of the stages that were built before.
    """

    def __init__(self, source: StartValues, held: Mapping[str, nn.Parameter]) -> None:
        self._source, self._held = source, held

    def parameters(self, module: nn.Module, names: Collection[str]) -> dict[str, Tensor]:
        """Those that are held, by reference; others as the source has them."""
        held = {name: self._held[name].detach() for name in names if name in self._held}
        return {**held, **self._source.parameters(module, set(names) - set(held))}

    def fill(self, buffers: Mapping[str, Tensor]) -> None:
        """As the source does."""
        self._source.fill(buffers)

    def remarks(self) -> list[str]:
        """The remarks of the source."""
        return self._source.remarks()


def start_values(specification: RunSpecification) -> StartValues:
    """What a run starts from.

    Raises:
        HeterpsError: The folder of weights cannot be read.
    """
    if specification.resume_from is not None:
        return Blank()
    if specification.weights is not None:
        # safetensors is an optional library.
        from heterps_runtime.models.safetensors import SafetensorsFolder

        return SafetensorsFolder(Path(specification.weights))
    return Initialised(specification.seed)
