"""Searches run in chunks: compiled loops of many evaluations, the clock read between two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from heterps_agents.interface.planner import Budget

# About a millisecond of evaluations.
CHUNK = 1000


class Chunk(NamedTuple):
    """One piece of a search.

    Attributes:
        evaluations: How many it may spend.
        rng: Its random numbers.
        start: Share of the search that is done before it, 0 to 1.
        stop: Share that will be done after it.
    """

    evaluations: int
    rng: np.random.Generator
    start: float
    stop: float


def chunks(
    budget: Budget,
    default_evaluations: int,
    seed: int | list[int],
    max_evaluations: int | None = None,
) -> Iterator[Chunk]:
    """Splits what is left of a budget, and charges the budget for each chunk.

    Args:
        budget: What may be spent.
        default_evaluations: Limit where the budget has none at all.
        seed: Equal seeds give equal chunks, unless a limit in seconds ends the search.
        max_evaluations: Stop there even if the budget allows more.
    """
    limits = [n for n in (budget.evaluations_left, max_evaluations) if n is not None]
    total = min(limits, default=None)
    if total is None and not budget.has_time_limit:
        total = default_evaluations
    done, rng = 0, np.random.default_rng(seed)
    while not budget.is_exhausted and (total is None or done < total):
        size = CHUNK if total is None else min(CHUNK, total - done)
        elapsed = budget.time_share
        start, stop = (0.0, 0.0) if total is None else (done / total, (done + size) / total)
        yield Chunk(
            evaluations=size,
            rng=rng,
            start=min(1.0, max(start, elapsed)),
            stop=min(1.0, max(stop, elapsed)),
        )
        budget.spend(size)
        done += size
