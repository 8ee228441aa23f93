"""Boxes of tensors: what several slices of one tensor have in common, and what is left of it.

Slices of one tensor may lie along different dimensions (a rank of a group has columns of a weight,
a replica steps some of its rows). A box has a start and a stop along every dimension, of the whole
tensor. Cut at the edges of all slices, each box lies inside or outside of each of them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise, product

from torch import Tensor

from heterps_runtime.tensor_parallel.slices import TensorSlice

Box = tuple[tuple[int, int], ...]


def boxes_of(shape: Sequence[int], place: TensorSlice | None) -> list[Box]:
    """What a slice consists of; none where that is nothing.

    Args:
        shape: Of the whole tensor.
        place: None: all of it.
    """
    whole = tuple((0, size) for size in shape)
    if place is None:
        found = [whole]
    else:
        found = [(*whole[: place.dim], part, *whole[place.dim + 1 :]) for part in place.ranges]
    return [box for box in found if num_elements(box)]


def num_elements(box: Box) -> int:
    """Of a box."""
    return math.prod(stop - start for start, stop in box)


def cut(box: Box, places: Iterable[TensorSlice | None]) -> Iterator[Box]:
    """A box in parts, each of which lies inside or outside of each place."""
    edges = [{start, stop} for start, stop in box]
    for place in places:
        if place is not None:
            start, stop = box[place.dim]
            ends = (end for part in place.ranges for end in part)
            edges[place.dim].update(end for end in ends if start < end < stop)
    return product(*(pairwise(sorted(own)) for own in edges))


def contains(place: TensorSlice | None, box: Box) -> bool:
    """Whether a slice has all of a box."""
    if place is None:
        return True
    first, last = box[place.dim]
    return any(start <= first and last <= stop for start, stop in place.ranges)


def view_of(tensor: Tensor, place: TensorSlice | None, box: Box) -> Tensor:
    """The view of a box in a tensor that has it.

    Args:
        tensor: A slice of a larger one, or all of it.
        place: Where it is in that.
        box: In the whole tensor.
    """
    view = tensor
    for dim, (start, stop) in enumerate(box):
        first = start if place is None or place.dim != dim else _local(place, start)
        view = view.narrow(dim, first, stop - start)
    return view


def _local(place: TensorSlice, start: int) -> int:
    before = 0
    for first, last in place.ranges:
        if first <= start < last:
            return before + start - first
        before += last - first
    raise AssertionError((place, start))


def copy_common(
    source: Tensor,
    held: TensorSlice | None,
    target: Tensor,
    wanted: TensorSlice | None,
) -> None:
    """Copies what two slices of one tensor have in common.

    Args:
        source: What is there.
        held: Its place; None: it is the whole tensor.
        target: What is filled.
        wanted: Its place; None: it is the whole tensor.
    """
    if held is None and wanted is None:
        target.copy_(source)
        return
    shape = (held or wanted).shape  # type: ignore[union-attr]
    for box in boxes_of(shape, wanted):
        for part in cut(box, [held]):
            if contains(held, part):
                view_of(target, wanted, part).copy_(view_of(source, held, part))


def slice_around(shape: Sequence[int], boxes: Sequence[Box]) -> TensorSlice | None:
    """The smallest slice that has all of some boxes; None: the whole tensor.

    Args:
        shape: Of the whole tensor.
        boxes: At least one.
    """
    found: TensorSlice | None = None
    least = 1.0
    for dim, size in enumerate(shape):
        ranges = _joined(box[dim] for box in boxes)
        share = sum(stop - start for start, stop in ranges) / size
        if share < least:
            found, least = TensorSlice(tuple(shape), dim, ranges), share
    return found


def _joined(spans: Iterable[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    found: list[tuple[int, int]] = []
    for start, stop in sorted(spans):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(stop, found[-1][1])
        else:
            found.append((start, stop))
    return tuple(found)
