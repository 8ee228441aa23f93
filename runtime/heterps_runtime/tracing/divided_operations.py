"""What of a traced pass divides over a tensor-parallel group, operation by operation.

An operation is split where it reads a part of a parameter or of a tensor; then so is what it makes.
What is split by inputs ends it: every device has a sum's term of all numbers. In front, every
device reads the whole, and gets a term of its gradient.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from torch import Tensor

from heterps_runtime.tracing.common_heads import Unit, UnitFlow, unit_of
from heterps_runtime.tracing.operation_log import (
    EMBEDDING,
    LOG_SOFTMAX,
    ExpertsCall,
    Operation,
    OperationLog,
    memory_of,
    num_bytes,
)
from heterps_runtime.tracing.tensor_plan import Piece

# A softmax over a split vocabulary sums its largest logits, its sums, and the targets' logits.
SOFTMAX_SUMS = 3
_SUM_ELEMENT_BYTES = 4
# What they make is a number for each place, of which those sums already told.
_LOSSES = frozenset({"aten::nll_loss_forward", "aten::nll_loss2d_forward"})
# Of a layer's numbers, those that are counted operation by operation.
Counted = Literal[
    "forward_flops", "backward_flops", "activation_bytes", "memory_traffic_bytes",
    "shared_bytes", "deferred_bytes", "attention_matrix_bytes",
]  # fmt: skip


class LayerSums:
    """Running sums of one layer.

    Attributes:
        divided: What divides into which units.
        forward_sums: Bytes of each sum over the group in the forward pass.
        backward_sums: The same of gradients of what is read whole, by its memory.
    """

    def __init__(self) -> None:
        self.divided: dict[Unit, dict[Counted, float]] = {}
        self.forward_sums: list[float] = []
        self.backward_sums: dict[int, float] = {}

    def add(self, number: Counted, unit: Unit, value: float) -> None:
        """More of what divides into these units."""
        own = self.divided.setdefault(unit, {})
        own[number] = own.get(number, 0.0) + value


class Division:
    """One walk over the passes.

    Args:
        plan: How parameters are split, by name.
        names: Of parameters and their copies, by memory.
        layer_of_call: Which layer a call of the model belongs to.
        num_layers: Of the model.

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
        self.sums = [LayerSums() for _ in range(num_layers)]

    def run(self, log: OperationLog) -> list[LayerSums]:
        """Sums of each layer; the walk is taken once.

        Args:
            log: Of a forward and a backward pass.
        """
        for operation in log.operations:
            self._step(operation)
        for experts in log.experts:
            self._sum_experts(experts)
        kept: tuple[tuple[Counted, list[tuple[int, int, float]]], ...] = (
            ("activation_bytes", log.saved),
            ("shared_bytes", log.shared),
            ("deferred_bytes", log.deferred),
            ("attention_matrix_bytes", log.matrices),
        )
        for number, entries in kept:
            for call, memory, size in entries:
                if memory in self.split:
                    self._at(call).add(number, self.split[memory], size)
        return self.sums

    def _at(self, call: int) -> LayerSums:
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
        way: Counted = "backward_flops" if operation.is_backward else "forward_flops"
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

    def _note_entering(self, operation: Operation, sums: LayerSums) -> None:
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

    def _sum_softmax(self, made: Tensor, sums: LayerSums) -> None:
        places = made.numel() // made.shape[1 if made.dim() > 2 else -1]
        sums.forward_sums += [float(places * _SUM_ELEMENT_BYTES)] * SOFTMAX_SUMS

    def _origin(self, tensor: Tensor) -> tuple[int, float]:
        """Memory of what a tensor is a copy of, and its bytes: of what is repeated, once."""
        memory = memory_of(tensor)
        once = min(num_bytes(tensor), float(tensor.untyped_storage().nbytes()))
        return self.whole.get(memory, (memory, once))
