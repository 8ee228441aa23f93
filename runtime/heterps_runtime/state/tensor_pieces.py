"""Pieces of tensors in a checkpoint: how their places are written down, and what they make up.

Ranks of a tensor-parallel group write what they hold. A piece's place in the whole tensor stands
behind its checksum in the table of its file: `12ab34cd;0;96,32;0-16+32-48` is of a tensor of 96 x
32, of whose dimension 0 it has 0 to 15 and 32 to 47.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

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


def overlaps(held: TensorSlice | None, wanted: TensorSlice | None) -> bool:
    """Whether two slices of one tensor have numbers in common."""
    if held is None or wanted is None or held.dim != wanted.dim:
        return True
    return any(
        max(start, first) < min(stop, last)
        for start, stop in held.ranges
        for first, last in wanted.ranges
    )
