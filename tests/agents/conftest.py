"""Policies that the tests of the planners share."""

import numpy as np
import pytest

from heterps_agents.learned.policy import Policy
from heterps_envs.environments.stage.state import feature_sizes
from tests.short_proofs import short_proofs

__all__ = ["random_policy", "random_price_policy", "short_proofs", "untrained"]


@pytest.fixture(scope="session")
def random_policy() -> Policy:
    """An untrained policy: what the search alone guarantees must hold for it too."""
    return untrained(with_prices=False)


@pytest.fixture(scope="session")
def random_price_policy() -> Policy:
    """The same, which reads the features of prices."""
    return untrained(with_prices=True)


def untrained(with_prices: bool) -> Policy:
    """Random weights."""
    rng, hidden = np.random.default_rng(0), 16
    candidate_features, state_features = feature_sizes(with_prices)
    context = 2 * hidden + state_features
    sizes = {
        "candidate_in": candidate_features,
        "state_in": state_features,
        "candidate_hidden": hidden,
        "score_candidate": hidden,
        "score_context": context,
        "value_context": context,
    }
    weights = {
        f"{name}.weight": rng.normal(0, size**-0.5, (hidden, size)) for name, size in sizes.items()
    }
    for name in ("candidate_in", "candidate_hidden", "score_candidate", "value_context"):
        weights[f"{name}.bias"] = np.zeros(hidden)
    for name in ("score_out", "value_out"):
        weights[f"{name}.weight"] = rng.normal(0, hidden**-0.5, (1, hidden))
        weights[f"{name}.bias"] = np.zeros(1)
    return Policy(weights, {})
