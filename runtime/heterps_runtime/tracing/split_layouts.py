"""Where the outputs of a linear layer belong that are split: packed beside each other or by unit.

Queries, keys and values may be one layer's outputs: all queries, then all keys, then all values
(three sections, of each of which a rank has its part), or those of one head after the other (one
section). What the model does with the outputs tells: each view of them by its offset and strides.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from heterps_runtime.tracing.operation_log import Operation, OperationLog, memory_of

# Start and length.
Section = tuple[int, int]


def sections_of(
    log: OperationLog, names: Mapping[int, str], weights: Mapping[str, tuple[int, int]]
) -> dict[str, tuple[Section, ...] | None]:
    """For each weight, the sections of its outputs; None where they are not read in whole units.

    Args:
        log: Of a forward pass.
        names: Of parameters and their copies, by memory.
        weights: Of linear layers by name: outputs, and units that they are split into.
    """
    readers = _Readers(names, weights)
    for operation in log.forward:
        readers.step(operation)
    return {
        name: _tiled(readers.sections[name], width, units)
        for name, (width, units) in weights.items()
    }


class _Readers:
    """Who reads what a layer made, and which part of it.

    Attributes:
        sections: By weight; None for a view that is no section.
    """

    def __init__(self, names: Mapping[int, str], weights: Mapping[str, tuple[int, int]]) -> None:
        self._names, self._weights = names, weights
        self._made: dict[int, str] = {}
        self.sections: dict[str, set[Section | None]] = {name: set() for name in weights}

    def step(self, operation: Operation) -> None:
        own = {self._names.get(memory_of(tensor), "") for tensor in operation.read}
        is_view = bool(operation.made) and all(
            memory_of(made) in {memory_of(tensor) for tensor in operation.read}
            for made in operation.made
        )
        if is_view:
            return
        for tensor in operation.read:
            name = self._made.get(memory_of(tensor))
            if name is None:
                continue
            is_whole = tensor.is_contiguous() and tensor.storage_offset() == 0
            if operation.is_plain and is_whole and len(operation.made) > 0:
                (made, *_) = operation.made
                if made.numel() == tensor.numel() and made.is_contiguous():
                    self._made[memory_of(made)] = name  # as long as it goes on as it is
                    continue
            width, units = self._weights[name]
            self.sections[name].add(_section(tensor, width, units))
        for name in own & self._weights.keys():
            for made in operation.made:
                if memory_of(made) not in self._names:
                    self._made[memory_of(made)] = name


def _section(tensor: Tensor, width: int, units: int) -> Section | None:
    """Which outputs a view reads."""
    offset = int(tensor.storage_offset()) % width
    pairs = sorted(
        (
            (stride, size)
            for stride, size in zip(tensor.stride(), tensor.shape, strict=True)
            if size > 1 and stride % width
        ),
        reverse=True,
    )
    merged: list[tuple[int, int]] = []
    for stride, size in pairs:
        if merged and merged[-1][0] == stride * size:
            stride, size = stride, size * merged.pop()[1]
        merged.append((stride, size))
    if not merged:
        return None
    stride, size = merged[0]
    if len(merged) == 1 and stride == 1:
        return offset, size
    # A part of each unit: numbers that lie in some distance from those of the next unit.
    length = stride * size
    if size % units:
        return None
    return offset // length * length, length


def _tiled(found: set[Section | None], width: int, units: int) -> tuple[Section, ...] | None:
    """Sections beside each other that make up all outputs."""
    if not found:
        return ((0, width),) if width % units == 0 else None
    sections = sorted(section for section in found if section is not None)
    position = 0
    for start, length in sections:
        if start != position or length % units:
            return None
        position += length
    return tuple(sections) if position == width and None not in found else None
