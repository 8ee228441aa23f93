"""Pieces of tensors in a checkpoint: which of their numbers another slice of the tensor needs.

Ranks of a tensor-parallel group write what they hold. A piece's place in the whole tensor stands
behind its checksum in the table of its file: `12ab34cd;0;96,32;0-16+32-48` is of a tensor of 96 x
32, of whose dimension 0 it has 0 to 15 and 32 to 47.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torch import Tensor

from heterps_runtime.tensor_parallel.slices import TensorSlice

PLACE_PATTERN = (
    r"[0-9]{1,2};[0-9]{1,18}(,[0-9]{1,18})*;[0-9]{1,18}-[0-9]{1,18}(\+[0-9]{1,18}-[0-9]{1,18})*"
)
_PLACE = re.compile(PLACE_PATTERN, re.ASCII)


def place_text(piece: TensorSlice) -> str:
    """A piece's place, as tables write it."""
    shape = ",".join(map(str, piece.shape))
    return f"{piece.dim};{shape};" + "+".join(f"{start}-{stop}" for start, stop in piece.ranges)


def parse_place(text: str) -> TensorSlice:
    """What `place_text` wrote.

    Raises:
        ValueError: It is no place, or one outside of its tensor.
    """
    if not _PLACE.fullmatch(text):
        raise ValueError("is no place in a tensor")
    dim_text, shape_text, ranges_text = text.split(";")
    shape = tuple(map(int, shape_text.split(",")))
    bounds = [tuple(map(int, part.split("-"))) for part in ranges_text.split("+")]
    ranges = tuple((start, stop) for start, stop in bounds)
    dim = int(dim_text)
    if dim >= len(shape):
        raise ValueError("has fewer dimensions than its place")
    ends = [0, *(end for part in ranges for end in part)]
    if ends != sorted(ends) or ends[-1] > shape[dim] or any(a == b for a, b in ranges):
        raise ValueError("has a place outside of its tensor")
    return TensorSlice(shape, dim, ranges)


def check_complete(pieces: Sequence[TensorSlice]) -> None:
    """Makes sure that pieces make up one tensor.

    Raises:
        ValueError: They are of different tensors, overlap or leave a gap.
    """
    if len({(piece.shape, piece.dim) for piece in pieces}) != 1:
        raise ValueError("has pieces of different tensors")
    end = 0
    for start, stop in sorted(part for piece in pieces for part in piece.ranges):
        if start != end:
            raise ValueError("has pieces that overlap, or leave a gap")
        end = stop
    if end != pieces[0].shape[pieces[0].dim]:
        raise ValueError("has pieces that leave a gap")


def copy_overlap(
    source: Tensor, held: TensorSlice | None, target: Tensor, wanted: TensorSlice | None
) -> None:
    """Copies what two slices of one tensor have in common.

    Args:
        source: What is there.
        held: Its place; None: it is the whole tensor.
        target: What is filled.
        wanted: Its place; None: it is the whole tensor.

    Raises:
        ValueError: They are sliced along different dimensions.
    """
    if held is None and wanted is None:
        target.copy_(source)
        return
    dims = {piece.dim for piece in (held, wanted) if piece is not None}
    if len(dims) > 1:
        raise ValueError("is split along another dimension")
    (dim,) = dims
    for from_start, to_start, length in _common(_ranges(held, source, dim), wanted, target, dim):
        part = source.narrow(dim, from_start, length)
        target.narrow(dim, to_start, length).copy_(part)


def overlaps(held: TensorSlice | None, wanted: TensorSlice | None) -> bool:
    """Whether two slices of one tensor have numbers in common."""
    if held is None or wanted is None or held.dim != wanted.dim:
        return True
    return any(
        max(start, first) < min(stop, last)
        for start, stop in held.ranges
        for first, last in wanted.ranges
    )


def _ranges(piece: TensorSlice | None, tensor: Tensor, dim: int) -> Sequence[tuple[int, int]]:
    return ((0, tensor.shape[dim]),) if piece is None else piece.ranges


def _common(
    held: Sequence[tuple[int, int]], wanted: TensorSlice | None, target: Tensor, dim: int
) -> Iterator[tuple[int, int, int]]:
    """(place in the source, place in the target, length) of each run in common."""
    before = 0
    for start, stop in held:
        filled = 0
        for first, last in _ranges(wanted, target, dim):
            begin, end = max(start, first), min(stop, last)
            if begin < end:
                yield before + begin - start, filled + begin - first, end - begin
            filled += last - first
        before += stop - start
