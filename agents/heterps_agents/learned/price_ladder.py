"""Lengths of the step that a search for cheap placements tries, and their bottlenecks."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats

# Steps of the first round: each so many times as long as the next shorter one. Fill of the
# placements looked for, over that of the fastest.
STEP_RATIO, FILLS = 1.2, (0.4, 1.3)
# The same of the rounds around the best placement; shares of the bottleneck over the best one's.
AROUND, AROUND_RATIO, SHARES_AROUND = (0.95, 1.1, 1.3), 1.1, (0.85, 1.05)


class PriceLadder(NamedTuple):
    """What a round of beams under price limits looks for.

    Attributes:
        steps_s: (S,) longest steps, seconds.
        shares: (B,) of the step that is the bottleneck.
        ratio: A step is so many times as long as the next shorter one that is looked for.
    """

    steps_s: Floats
    shares: Floats
    ratio: float


def first_ladder(
    shortest_s: float, slowest_s: float, share: float, most_steps: int, num_shares: int
) -> PriceLadder:
    """Steps of every length.

    Args:
        shortest_s: The fastest known step.
        slowest_s: The slowest that is worth it.
        share: Of the fastest step that is its bottleneck.
        most_steps: Lengths at most.
        num_shares: Shares for each.
    """
    count = math.ceil(math.log(slowest_s / shortest_s) / math.log(STEP_RATIO))
    count = min(max(count, 1), most_steps)
    ratio = max((slowest_s / shortest_s) ** (1 / count), STEP_RATIO)
    # Cheaper placements have fewer stages, so less of the step is fill.
    shares = 1 - (1 - share) * np.geomspace(*FILLS, num_shares)
    return PriceLadder(slowest_s / ratio ** np.arange(count), shares, ratio)


def ladder_around(
    step_time_s: float, share: float, slowest_s: float, num_shares: int
) -> PriceLadder:
    """Steps about as long as that of the best placement, of which `share` is the bottleneck."""
    steps_s = np.unique(np.minimum(step_time_s * np.array(AROUND), slowest_s))
    return PriceLadder(steps_s, share * np.geomspace(*SHARES_AROUND, num_shares), AROUND_RATIO)
