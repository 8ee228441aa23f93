"""Heads of one layer: how queries, keys and values that belong together are handed out.

Where each query head has its own keys and values, all are handed out alike. Where several share
them, the unit is the query head, and keys and values go wherever queries go that use them
(`group_slice.query_head_ranges`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

from torch import Tensor

from heterps_runtime.models.layers import Layer
from heterps_runtime.tracing.operation_log import ATTENTION, Operation, memory_of
from heterps_runtime.tracing.tensor_plan import Piece

# They repeat what they read; others do so where they read something that is expanded.
_REPEATING = frozenset({"aten::repeat", "aten::index_select", "aten::index"})


class Unit(NamedTuple):
    """What something divides into; of two that meet, the smaller one counts.

    Attributes:
        num_units: How many there are.
        key_value_heads: Of what belongs to heads of keys and values, how many; else 0.
    """

    num_units: int
    key_value_heads: int = 0

    @property
    def num_queries(self) -> int:
        """Of each of these heads."""
        return self.num_units // self.key_value_heads


def unit_of(piece: Piece) -> Unit:
    """What a parameter divides into."""
    return Unit(piece.num_units, piece.key_value_heads if piece.is_key_value else 0)


def with_common_heads(layers: Sequence[Layer], plan: Mapping[str, Piece]) -> dict[str, Piece]:
    """All heads of a layer divide into the same units."""
    found = dict(plan)
    for layer in layers:
        own = {n: plan[n] for n in layer.parameters if n in plan and plan[n].unit == "heads"}
        heads = _grouped(own.values(), plan.values())
        units = math.gcd(*(piece.num_units for piece in own.values()))
        for name, piece in own.items():
            found[name] = piece._replace(num_units=units)
            if heads is not None:
                found[name] = piece._replace(
                    num_units=heads.num_units,
                    key_value_heads=heads.key_value_heads,
                    is_key_value=piece.num_units == heads.key_value_heads,
                )
    return found


def _grouped(own: Iterable[Piece], every: Iterable[Piece]) -> Unit | None:
    """Query heads, and the fewer heads of keys and values that they share; None where they don't.

    They are the fewest units of the model: nothing that lies in one layer with them, or is tied to
    it, ends the group before them.
    """
    counts = sorted({piece.num_units for piece in own})
    if len(counts) != 2:
        return None
    fewer, heads = counts
    if heads % fewer or any(p.role == "row" and p.num_units == fewer for p in own):
        return None
    if any(piece.num_units < heads for piece in every if piece.unit != "heads"):
        return None
    return Unit(heads, fewer)


class UnitFlow:
    """What operations make of parts: keys and values are repeated for queries, and summed again.

    Args:
        pieces: Of the model.
    """

    def __init__(self, pieces: Iterable[Piece]) -> None:
        self._shared = {
            Unit(piece.num_units, piece.key_value_heads) for piece in pieces if piece.is_key_value
        }

    def made(self, operation: Operation, tensor: Tensor, unit: Unit) -> Unit:
        """What a tensor divides into that an operation on such parts has made.

        Args:
            operation: Reads parts.
            tensor: One of those it makes.
            unit: What the parts that it reads divide into.
        """
        if unit.key_value_heads:
            return Unit(unit.num_units) if _is_repeated(unit, operation, tensor) else unit
        for shared in self._shared:
            if shared.num_units == unit.num_units and _is_of(shared, operation, tensor):
                return shared
        return unit


def _is_repeated(unit: Unit, operation: Operation, tensor: Tensor) -> bool:
    """Whether it has keys or values once for every query; as long as it is a view, it has not."""
    if memory_of(tensor) in map(memory_of, operation.read):
        return False
    sizes = (
        read.untyped_storage().nbytes() // read.element_size()
        for read in operation.read
        if operation.name in _REPEATING or _is_expanded(read)
    )
    return any(unit.num_queries * size == tensor.numel() for size in sizes)


def _is_expanded(tensor: Tensor) -> bool:
    """Whether it shows the same numbers more than once."""
    pairs = zip(tensor.stride(), tensor.shape, strict=True)
    return any(stride == 0 and size > 1 for stride, size in pairs)


def _is_of(unit: Unit, operation: Operation, tensor: Tensor) -> bool:
    """Whether an operation on what queries have made a gradient of keys or values."""
    if ATTENTION in operation.name and tensor.dim() > 2:
        return tensor.shape[-3] == unit.key_value_heads
    sizes = unit.key_value_heads, unit.num_queries
    return operation.is_backward and any(
        read.numel() == unit.num_queries * tensor.numel() and sizes in pairwise(read.shape)
        for read in operation.read
    )
