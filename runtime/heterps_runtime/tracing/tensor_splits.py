"""What of every layer a tensor-parallel group splits, counted from what a traced pass did.

The operations are gone through in `divided_operations`; here are their sums as documents.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

from torch import nn

from heterps_configs.documents.model.tensor_split import (
    DIVIDED_NUMBERS,
    FinerSplit,
    KeyValueSplit,
    TensorSplit,
)
from heterps_runtime.models.layers import Layer
from heterps_runtime.models.recording import canonical_names
from heterps_runtime.tracing.common_heads import unit_of, with_common_heads
from heterps_runtime.tracing.divided_operations import Counted, Division, LayerSums
from heterps_runtime.tracing.linear_pairs import flow_of, linear_sizes
from heterps_runtime.tracing.operation_log import OperationLog, memory_of
from heterps_runtime.tracing.split_layouts import Section, sections_of
from heterps_runtime.tracing.tensor_plan import Piece, parameter_owners, tensor_plan

# Numbers of a whole pass that are the same for any number of samples.
_OF_NO_SAMPLE = frozenset({"shared_bytes"})


def tensor_splits(
    module: nn.Module,
    layers: Sequence[Layer],
    log: OperationLog,
    parameters: Mapping[int, str],
    batch_size: int,
) -> list[TensorSplit | None]:
    """For each layer what is split; None where nothing can be.

    Args:
        module: The model.
        layers: Its layers.
        log: Of a forward and a backward pass.
        parameters: Names of its parameters, by memory.
        batch_size: Samples of the pass.
    """
    layer_of_call = _layer_of_call(layers)
    names = _with_copies(log, parameters)
    plan = _pieces(module, layers, log, names)
    found = Division(plan, names, layer_of_call, len(layers)).run(log)
    return _as_documents(module, layers, plan, found, batch_size)


class SplitParameter(NamedTuple):
    """A parameter that a group can split.

    Attributes:
        piece: How.
        sections: Of its outputs, where it has any; None where they are not read in whole units.
    """

    piece: Piece
    sections: tuple[Section, ...] | None


def split_parameters(
    module: nn.Module, layers: Sequence[Layer], log: OperationLog, parameters: Mapping[int, str]
) -> dict[str, SplitParameter]:
    """What `tensor_splits` counts as split, by name; arguments as there."""
    names = _with_copies(log, parameters)
    pieces = _pieces(module, layers, log, names)
    sizes, owners = linear_sizes(module), parameter_owners(module)
    weights = {
        name: (sizes[owners[name]][1], piece.num_parts)
        for name, piece in pieces.items()
        if piece.role == "column" and piece.unit != "vocabulary" and name in owners
    }
    found = sections_of(log, names, weights)
    return {name: SplitParameter(piece, found.get(name)) for name, piece in pieces.items()}


def _layer_of_call(layers: Sequence[Layer]) -> dict[int, int]:
    found = {call: index for index, layer in enumerate(layers) for call in layer.calls}
    # The loss belongs to the last layer.
    return defaultdict(lambda: len(layers) - 1, found)


def _pieces(
    module: nn.Module, layers: Sequence[Layer], log: OperationLog, names: Mapping[int, str]
) -> dict[str, Piece]:
    flow = flow_of(log, names, parameter_owners(module), _layer_of_call(layers))
    return with_common_heads(layers, tensor_plan(module, flow))


def _with_copies(log: OperationLog, parameters: Mapping[int, str]) -> dict[int, str]:
    """Names of parameters by memory, that of their copies and of what is selected of them too."""
    names = dict(parameters)
    for operation in log.operations:
        own = {names.get(memory_of(t), "") for t in operation.read if t.is_floating_point()}
        if len(own) == 1 and "" not in own and operation.is_plain and not operation.flops:
            (name,) = own
            for tensor in operation.made:
                names.setdefault(memory_of(tensor), name)
    return names


def _as_documents(
    module: nn.Module,
    layers: Sequence[Layer],
    plan: Mapping[str, Piece],
    found: Sequence[LayerSums],
    batch_size: int,
) -> list[TensorSplit | None]:
    names = canonical_names(module)
    sizes = {names[id(parameter)]: parameter.numel() for parameter in module.parameters()}
    tables = {names[id(part.weight)] for part in module.modules() if isinstance(part, nn.Embedding)}
    owners: dict[str, int] = {}
    fewest = [
        min((plan[name].num_units for name in layer.parameters if name in plan), default=0)
        for layer in layers
    ]
    splits: list[TensorSplit | None] = []
    for index, (layer, sums) in enumerate(zip(layers, found, strict=True)):
        own = {name: plan[name] for name in layer.parameters if name in plan}
        tied = {name for name in own if name in owners}
        num_units = min([fewest[index], *(fewest[owners[name]] for name in tied)])
        for name in layer.parameters:
            owners.setdefault(name, index)
        if num_units < 2:
            splits.append(None)
            continue
        smallest = min(own.values(), key=lambda piece: piece.num_units)
        units = {unit_of(piece) for piece in own.values()} | sums.divided.keys()
        by_units = {
            unit: _divided_numbers(
                {n: sizes[n] for n in own if unit_of(own[n]) == unit},
                tied,
                tables,
                sums.divided.get(unit, {}),
                batch_size,
            )
            for unit in sorted(units)
        }
        key_values = [
            KeyValueSplit(num_units=unit.key_value_heads, **numbers)
            for unit, numbers in by_units.items()
            if unit.key_value_heads and numbers["parameters"]
        ]
        splits.append(
            TensorSplit(
                unit=smallest.unit,
                num_units=num_units,
                forward_sums=tuple(size / batch_size for size in sums.forward_sums),
                backward_sums=tuple(size / batch_size for size in sums.backward_sums.values()),
                finer=tuple(
                    FinerSplit(num_units=unit.num_units, **numbers)
                    for unit, numbers in by_units.items()
                    if unit.num_units > num_units
                ),
                key_values=key_values[0] if key_values else None,
                **{
                    name: sum(numbers[name] for numbers in by_units.values())
                    for name in DIVIDED_NUMBERS
                },
            )
        )
    return splits


def _divided_numbers(
    sizes: Mapping[str, int],
    tied: set[str],
    tables: set[str],
    counted: Mapping[Counted, float],
    batch_size: int,
) -> dict[str, Any]:
    """What divides into one number of units.

    Args:
        sizes: Of the parameters that do.
        tied: Parameters that another layer owns.
        tables: Parameters of embeddings.
        counted: Of the whole pass.
        batch_size: Of the pass.
    """
    return {
        "parameters": sum(sizes.values()),
        "sparse_parameters": sum(sizes[name] for name in sizes if name in tables - tied),
        "tied_parameters": sum(sizes[name] for name in sizes if name in tied),
        **{
            number: counted.get(number, 0.0) / (1 if number in _OF_NO_SAMPLE else batch_size)
            for number in get_args(Counted)
        },
    }
