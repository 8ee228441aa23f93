"""How an episode stands, and the ratios that its features are made of."""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.compiled import inlined, uncounted_helper

# RUNNING until the end; COMPLETE with a placement that can be used; STUCK where no action was
# allowed, or one was taken that is not.
RUNNING, COMPLETE, STUCK = 0, 1, 2
# No feature is larger.
LARGEST_RATIO = 4.0


@inlined
def ratio(numerator: float, denominator: float) -> float:
    """The quotient, within plus and minus LARGEST_RATIO; 0 by 0 is 0."""
    if denominator > 0.0:  # always, but for what has run out; so no branch is hard to predict
        return max(-LARGEST_RATIO, min(LARGEST_RATIO, numerator / denominator))
    return LARGEST_RATIO if numerator > 0.0 else 0.0


@inlined
def log_ratio(numerator: float, denominator: float) -> float:
    """Logarithm of a quotient of two numbers that are not negative, within the same limits."""
    value = np.log(max(numerator, 1e-30) / max(denominator, 1e-30))
    return min(LARGEST_RATIO, max(-LARGEST_RATIO, value))  # type: ignore[no-any-return]


@uncounted_helper
def take_candidates(view: Any, row: int) -> None:
    """Takes all candidates of an episode away. Those that are not allowed are zero already."""
    for action in range(view.allowed.shape[1]):
        if view.allowed[row, action]:
            view.allowed[row, action] = False
            view.candidates[row, action] = 0.0
