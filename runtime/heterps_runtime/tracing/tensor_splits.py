"""What of every layer a tensor-parallel group splits, counted from what a traced pass did.

An operation is split where it reads a part of a parameter or of a tensor; then so is what it makes.
What is split by inputs ends it: every device has a sum's term of all numbers. In front, every
device reads the whole, and gets a term of its gradient.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple, get_args

from torch import Tensor, nn

from heterps_configs.documents.model.tensor_split import (
    DIVIDED_NUMBERS,
    FinerSplit,
    KeyValueSplit,
    TensorSplit,
)
from heterps_runtime.models.layers import Layer
from heterps_runtime.models.recording import canonical_names
from heterps_runtime.tracing.common_heads import Unit, UnitFlow, unit_of, with_common_heads
from heterps_runtime.tracing.linear_pairs import flow_of, linear_sizes
from heterps_runtime.tracing.operation_log import (
    EMBEDDING,
    LOG_SOFTMAX,
    ExpertsCall,
    Operation,
    OperationLog,
    memory_of,
    num_bytes,
)
from heterps_runtime.tracing.split_layouts import Section, sections_of
from heterps_runtime.tracing.tensor_plan import Piece, parameter_owners, tensor_plan

# A softmax over a split vocabulary sums its largest logits, its sums, and the targets' logits.
SOFTMAX_SUMS = 3
_SUM_ELEMENT_BYTES = 4
# What they make is a number for each place, of which those sums already told.
_LOSSES = frozenset({"aten::nll_loss_forward", "aten::nll_loss2d_forward"})


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
    found = _Division(plan, names, layer_of_call, len(layers)).run(log)
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


# Of a layer's numbers, those that are counted operation by operation.
_Counted = Literal[
    "forward_flops", "backward_flops", "activation_bytes", "memory_traffic_bytes",
    "shared_bytes", "deferred_bytes",
]  # fmt: skip
_OF_NO_SAMPLE = frozenset({"shared_bytes"})


class _Sums:
    """Running sums of one layer.

    Attributes:
        divided: What divides into which units.
    """

    def __init__(self) -> None:
        self.divided: dict[Unit, dict[_Counted, float]] = {}
        self.forward_sums: list[float] = []
        self.backward_sums: dict[int, float] = {}

    def add(self, number: _Counted, unit: Unit, value: float) -> None:
        """More of what divides into these units."""
        own = self.divided.setdefault(unit, {})
        own[number] = own.get(number, 0.0) + value


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


class _Division:
    """One walk over the passes.

    Attributes:
        split: By memory of the tensors of which every device has a part, into which units they
            divide.
        whole: Of a copy of a whole tensor, the memory and the bytes of that tensor.
    """

    def __init__(
        self,
        plan: Mapping[str, Piece],
        names: Mapping[int, str],
        layer_of_call: Mapping[int, int],
        num_layers: int,
    ) -> None:
        self._plan, self._names, self._layer_of_call = plan, names, layer_of_call
        self._flow = UnitFlow(plan.values())
        self.split: dict[int, Unit] = {}
        self.whole: dict[int, tuple[int, float]] = {}
        self.sums = [_Sums() for _ in range(num_layers)]

    def run(self, log: OperationLog) -> list[_Sums]:
        for operation in log.operations:
            self._step(operation)
        for experts in log.experts:
            self._sum_experts(experts)
        kept: tuple[tuple[_Counted, list[tuple[int, int, float]]], ...] = (
            ("activation_bytes", log.saved),
            ("shared_bytes", log.shared),
            ("deferred_bytes", log.deferred),
        )
        for number, entries in kept:
            for call, memory, size in entries:
                if memory in self.split:
                    self._at(call).add(number, self.split[memory], size)
        return self.sums

    def _at(self, call: int) -> _Sums:
        return self.sums[self._layer_of_call[call]]

    def _step(self, operation: Operation) -> None:
        sums = self._at(operation.call)
        memories = [memory_of(tensor) for tensor in operation.read]
        pieces = [self._plan[self._names[m]] for m in memories if self._names.get(m) in self._plan]
        made = [tensor for tensor in operation.made if memory_of(tensor) not in self._names]
        units = [unit_of(piece) for piece in pieces]
        units += [self.split[memory] for memory in memories if memory in self.split]
        if not units:
            if operation.is_copy and made:
                self.whole[memory_of(made[0])] = self._origin(operation.read[0])
            return
        unit = min(units)
        way: _Counted = "backward_flops" if operation.is_backward else "forward_flops"
        sums.add(way, unit, operation.flops)
        ends = self._ends(operation, pieces)
        if not ends:
            self.split.update(
                (memory_of(tensor), self._flow.made(operation, tensor, unit)) for tensor in made
            )
        for memory, size in operation.moved:
            if memory in self.split:
                sums.add("memory_traffic_bytes", self.split[memory], size)
        if not operation.is_backward and made:
            of_experts = any(piece.of_experts for piece in pieces)
            if ends and not of_experts and operation.name not in _LOSSES:
                sums.forward_sums += [num_bytes(tensor) for tensor in made]
            if not of_experts:
                self._note_entering(operation, sums)
            if operation.name == LOG_SOFTMAX:
                self._sum_softmax(operation.made[0], sums)

    def _ends(self, operation: Operation, pieces: Sequence[Piece]) -> bool:
        """Whether every device makes a term of a sum over the group."""
        if operation.name == EMBEDDING or operation.name in _LOSSES:
            return True
        # The same parameter may be a table in front and a head behind.
        roles = {
            "column" if piece.unit == "vocabulary" and piece.role == "row" else piece.role
            for piece in pieces
        }
        return ("column" if operation.is_backward else "row") in roles

    def _note_entering(self, operation: Operation, sums: _Sums) -> None:
        """What is read whole gets a sum of gradients, once in a layer."""
        for tensor, follows in zip(operation.read, operation.follows, strict=True):
            memory = memory_of(tensor)
            if follows and memory not in self.split and memory not in self._names:
                sums.backward_sums.setdefault(*self._origin(tensor))

    def _sum_experts(self, experts: ExpertsCall) -> None:
        sums = self._at(experts.call)
        if not any(self._plan[name].of_experts for name in experts.parameters & {*self._plan}):
            return
        sums.forward_sums += [num_bytes(tensor) for tensor in experts.made]
        for tensor in experts.read:
            sums.backward_sums.setdefault(*self._origin(tensor))

    def _sum_softmax(self, made: Tensor, sums: _Sums) -> None:
        places = made.numel() // made.shape[1 if made.dim() > 2 else -1]
        sums.forward_sums += [float(places * _SUM_ELEMENT_BYTES)] * SOFTMAX_SUMS

    def _origin(self, tensor: Tensor) -> tuple[int, float]:
        """Memory of what a tensor is a copy of, and its bytes: of what is repeated, once."""
        memory = memory_of(tensor)
        once = min(num_bytes(tensor), float(tensor.untyped_storage().nbytes()))
        return self.whole.get(memory, (memory, once))


def _as_documents(
    module: nn.Module,
    layers: Sequence[Layer],
    plan: Mapping[str, Piece],
    found: Sequence[_Sums],
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
    counted: Mapping[_Counted, float],
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
            for number in get_args(_Counted)
        },
    }
