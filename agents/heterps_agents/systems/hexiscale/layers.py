"""Layers for the stages of a pipeline: in proportion to speed and memory, within memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats

# How much memory counts beside speed in a stage's share of the layers; 1: memory alone.
BLENDS = (0.0, 0.25, 0.5, 0.75, 1.0)


class StageTimes(NamedTuple):
    """Layers as a stage's devices have them; L layers.

    Attributes:
        compute_s: (L + 1,) seconds of all layers before a cut.
        state_bytes: (L + 1,) the same of what is held whatever is in flight.
        activation_bytes: (L + 1,) the same of what is kept of a micro-batch.
        room_bytes: Of a device.
        held: Micro-batches that the stage has in flight.
    """

    compute_s: Floats
    state_bytes: Floats
    activation_bytes: Floats
    room_bytes: float
    held: int = 1

    def fits(self, first: int, end: int) -> bool:
        """Whether layers have room."""
        state = self.state_bytes[end] - self.state_bytes[first]
        kept = self.activation_bytes[end] - self.activation_bytes[first]
        return bool(state + self.held * kept <= self.room_bytes)

    def most_in_flight(self, first: int, end: int) -> float:
        """Micro-batches that layers have room for; inf where they keep nothing."""
        state = self.state_bytes[end] - self.state_bytes[first]
        kept = self.activation_bytes[end] - self.activation_bytes[first]
        free = self.room_bytes - state
        if free < 0:
            return 0.0
        return float(free // kept) if kept > 0 else np.inf


def proportional_ends(load: Floats, shares: Sequence[float] | Floats) -> tuple[int, ...]:
    """Where stages end: where their part of the load is nearest to their share, perhaps at once.

    Args:
        load: (L + 1,) of all layers before a cut.
        shares: Of each stage, positive.
    """
    wanted = np.cumsum(shares)[:-1] / np.sum(shares) * load[-1]
    ends = np.abs(load - wanted[:, None]).argmin(axis=1)
    return (*np.maximum.accumulate(ends).tolist(), len(load) - 1)


def with_room(stages: Sequence[StageTimes], ends: Sequence[int]) -> list[int] | None:
    """The ends, moved where a stage lacks memory: its layers go to a neighbour.

    None where they do not fit that way.
    """
    found = list(ends)
    for index in range(len(stages) - 1):
        first = found[index - 1] if index else 0
        while found[index] - first > 1 and not stages[index].fits(first, found[index]):
            found[index] -= 1
    for index in range(len(stages) - 1, 0, -1):
        end = found[index]
        while end - found[index - 1] > 1 and not stages[index].fits(found[index - 1], end):
            found[index - 1] += 1
    firsts = [0, *found[:-1]]
    if any(end <= first for first, end in zip(firsts, found, strict=True)):
        return None
    parts = zip(stages, firsts, found, strict=True)
    return found if all(stage.fits(first, end) for stage, first, end in parts) else None
