"""Placements that differ from one in a stage, and use more devices of one class."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Code
from heterps_envs.closed_form.formula import CUT_BIT, MAX_REPLICAS, OPTION_MASK, REPLICA_SHIFT
from heterps_envs.closed_form.kernel_tables import KernelTables

Counts = NDArray[np.int64]
# Layers that a stage gives away: of the first and of the last ones.
_GIVEN = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def usage(code: Code, kernel: KernelTables) -> Counts:
    """(T,) devices of each class that a placement takes."""
    used = np.zeros(kernel.num_classes, np.int64)
    for first, _ in stage_ranges(code):
        kind = int(code[first]) & OPTION_MASK
        replicas = (int(code[first]) >> REPLICA_SHIFT) + 1
        used[kernel.class_of_option[kind]] += replicas * kernel.devices_of_option[kind]
    return used


def stage_ranges(code: Code) -> list[tuple[int, int]]:
    """First and last layer of each stage, front first."""
    kinds = code & OPTION_MASK
    ends = (code[:-1] & CUT_BIT > 0) | (kinds[:-1] != kinds[1:])
    lasts = [*np.flatnonzero(ends).tolist(), len(code) - 1]
    return list(zip([0, *(last + 1 for last in lasts[:-1])], lasts, strict=True))


def placements_with_more(code: Code, kernel: KernelTables, device_class: int) -> Iterator[Code]:
    """Placements with more devices of a class: a stage, or some of its layers, go to it.

    Args:
        code: (L,) int32 placement.
        kernel: How many devices there are, and the options.
        device_class: Of which more are taken.
    """
    used = usage(code, kernel)
    options = np.flatnonzero(kernel.class_of_option == device_class)
    for first, last in stage_ranges(code):
        own = int(code[first]) & OPTION_MASK
        replicas = (int(code[first]) >> REPLICA_SHIFT) + 1
        taken = replicas * int(kernel.devices_of_option[own])
        is_same = kernel.class_of_option[own] == device_class
        free = int(kernel.device_count[device_class] - used[device_class])
        parts = [(first, last, free + taken * is_same)]
        for count in _GIVEN:
            if count <= last - first:
                parts += [(first, first + count - 1, free), (last - count + 1, last, free)]
        for begin, end, room in parts:
            is_whole = begin == first and end == last
            for option in options:
                size = int(kernel.devices_of_option[option])
                least = taken // size + 1 if is_whole and is_same else 1
                for number in _replica_counts(room // size, replicas, kernel.num_micro_batches):
                    if number >= least:
                        yield _with_part(code, begin, end, int(option), number)


def _replica_counts(most: int, own: int, num_micro_batches: int) -> list[int]:
    """Numbers of replicas worth trying: shares of the micro-batches that differ."""
    most = min(most, num_micro_batches, MAX_REPLICAS)
    shares = {-(-num_micro_batches // count) for count in range(1, most + 1)}
    # The fewest replicas of each share.
    useful = {-(-num_micro_batches // share) for share in shares}
    found = sorted(count for count in {*useful, own} if count <= most)
    return found if len(found) <= 8 else sorted({*found[:3], *found[-4:], *({own} & set(found))})


def _with_part(code: Code, first: int, last: int, option: int, replicas: int) -> Code:
    """A placement with some layers as a stage of their own."""
    changed = code.copy()
    changed[first : last + 1] = option | ((replicas - 1) << REPLICA_SHIFT)
    for layer in (first - 1, last):
        if 0 <= layer < len(code) - 1:
            is_alike = (changed[layer] ^ changed[layer + 1]) & OPTION_MASK == 0
            changed[layer] = changed[layer] & ~CUT_BIT | (CUT_BIT if is_alike else 0)
    return changed
