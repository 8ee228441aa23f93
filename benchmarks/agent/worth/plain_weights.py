"""Weights that nobody learned, as policies: they run in the very same compiled path.

`untrained`: as training begins with them. `by_price`: the value that a stage covers over the price
of its devices, as `heterps_agents.learned.unlearned_beam` scores, its logarithm interpolated by the
units of the network's first layer.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_agents.learned.policy import Policy
from heterps_agents.learned.unlearned_beam import SHARPNESS
from heterps_envs.environments.stage.state import FEATURE_VERSION

HIDDEN = 64
# Column of candidate features (`heterps_envs.environments.stage.env`).
EFFICIENCY = 2
# Between these the logarithm is a line from one to the next.
KNOTS = np.geomspace(1e-3, 4.0, 60)


def untrained(seed: int) -> Policy:
    """The weights that training with this seed begins with, but for the draw."""
    rng = np.random.default_rng(seed)
    shapes = Policy.shapes(HIDDEN, FEATURE_VERSION, {})
    weights = {}
    for name, shape in shapes.items():
        layer = name.rpartition(".")[0]
        width = 1 / np.sqrt(shapes[f"{layer}.weight"][1])
        weights[name] = rng.uniform(-width, width, shape).astype(np.float32)
    return Policy(weights, {"feature_version": FEATURE_VERSION})


def by_price() -> Policy:
    """Scores by price."""
    zeros = {
        name: np.zeros(shape, np.float32)
        for name, shape in Policy.shapes(HIDDEN, FEATURE_VERSION, {}).items()
    }
    wanted = SHARPNESS * (np.log(KNOTS) - np.log(KNOTS[0]))
    slopes = np.diff(wanted) / np.diff(KNOTS)
    count = len(slopes)
    zeros["candidate_in.weight"][:count, EFFICIENCY] = 1.0
    zeros["candidate_in.bias"][:count] = -KNOTS[:-1]
    zeros["candidate_hidden.weight"][:count, :count] = np.eye(count)
    # One unit holds the whole score, which is never negative: rectifying changes nothing.
    zeros["score_candidate.weight"][0, :count] = _changes(slopes)
    zeros["score_out.weight"][0, 0] = 1.0
    return Policy(zeros, {"feature_version": FEATURE_VERSION})


def _changes(slopes: NDArray[np.float64]) -> NDArray[np.float32]:
    """What each unit adds to the slope where it sets in."""
    return np.diff(slopes, prepend=0.0).astype(np.float32)
