"""Two methods on the same problems: their ratio, with an interval, and who won how often."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

DRAWS, LEVEL = 10_000, 0.95
# Closer than this is a draw.
EQUAL = 1e-4


class Paired(NamedTuple):
    """How much more another method costs than ours, over the problems that both answered.

    Attributes:
        gain: Geometric mean of its cost over ours, minus 1.
        low, high: The interval of 95 % of that, by bootstrap over problems.
        wins, losses: Problems on which ours is better, and worse, by more than 0.01 %.
        problems: How many both answered.
    """

    gain: float
    low: float
    high: float
    wins: int
    losses: int
    problems: int


def paired(ours: Sequence[float | None], others: Sequence[float | None], seed: int = 0) -> Paired:
    """Compares costs, problem by problem; None where a method found nothing."""
    logs = np.array(
        [
            np.log(b / a)
            for a, b in zip(ours, others, strict=True)
            if a is not None and b is not None
        ]
    )
    wins, losses = int((logs > EQUAL).sum()), int((logs < -EQUAL).sum())
    # Where only one found anything, that one has won.
    for a, b in zip(ours, others, strict=True):
        wins += a is not None and b is None
        losses += a is None and b is not None
    if len(logs) == 0:
        return Paired(float("nan"), float("nan"), float("nan"), wins, losses, 0)
    drawn = np.random.default_rng(seed).integers(0, len(logs), (DRAWS, len(logs)))
    tail = 100 * (1 - LEVEL) / 2
    low, high = np.percentile(logs[drawn].mean(axis=1), [tail, 100 - tail])
    gain, low, high = (float(value) for value in np.expm1([logs.mean(), low, high]))
    return Paired(gain, low, high, wins, losses, len(logs))
