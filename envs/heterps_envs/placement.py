"""Placements: layer -> device class, with replicas for each stage; and their compact code for kernels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_envs.closed_form import CLASS_MASK, CUT_BIT, MAX_REPLICAS, REPLICA_SHIFT


@dataclass(frozen=True)
class PlacedStage:
    """Layers `first_layer .. last_layer` (inclusive) on `replicas` devices of one class (by index)."""

    first_layer: int
    last_layer: int
    device_class: int
    replicas: int = 1


Placement = tuple[PlacedStage, ...]


def encode(placement: Sequence[PlacedStage]) -> NDArray[np.int16]:
    """(L,) int16 code of a placement, see `heterps_envs.closed_form`."""
    code = np.zeros(placement[-1].last_layer + 1, np.int16)
    for stage, following in zip(placement, [*placement[1:], None], strict=True):
        assert 1 <= stage.replicas <= MAX_REPLICAS
        code[stage.first_layer : stage.last_layer + 1] = stage.device_class | (
            (stage.replicas - 1) << REPLICA_SHIFT
        )
        if following is not None and following.device_class == stage.device_class:
            code[stage.last_layer] |= CUT_BIT
    return code


def decode(code: NDArray[np.int16]) -> Placement:
    """The placement that a code stands for; the inverse of `encode`."""
    stages, first = [], 0
    for layer, value in enumerate(code):
        kind = int(value) & CLASS_MASK
        is_last = layer + 1 == len(code)
        if is_last or int(value) & CUT_BIT or int(code[layer + 1]) & CLASS_MASK != kind:
            stages.append(PlacedStage(first, layer, kind, (int(value) >> REPLICA_SHIFT) + 1))
            first = layer + 1
    return tuple(stages)
