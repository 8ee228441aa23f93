"""Weights that nobody learned say what they are meant to say."""

import numpy as np

from benchmarks.agent.worth.plain_weights import by_price, untrained
from heterps_agents.learned.unlearned_beam import PriceScorer
from heterps_envs.environments.stage.state import NUM_CANDIDATE_FEATURES, NUM_GLOBAL_FEATURES


def test_weights_by_price_score_as_the_unlearned_beam_does() -> None:
    rng = np.random.default_rng(0)
    candidates = rng.random((60, NUM_CANDIDATE_FEATURES), np.float32)
    candidates[:, 2] = np.geomspace(2e-3, 3.9, 60)
    state = rng.random((3, NUM_GLOBAL_FEATURES), np.float32)
    row = np.repeat(np.arange(3), 20)
    ours = by_price().log_probabilities(candidates, state, row)
    theirs = PriceScorer().log_probabilities(candidates, state, row)
    np.testing.assert_allclose(ours, theirs, atol=0.03)


def test_untrained_weights_differ_by_seed_and_do_not_say_nothing() -> None:
    rng = np.random.default_rng(1)
    candidates = rng.random((10, NUM_CANDIDATE_FEATURES), np.float32)
    state, row = rng.random((1, NUM_GLOBAL_FEATURES), np.float32), np.zeros(10, np.int64)
    first, second = (untrained(seed).log_probabilities(candidates, state, row) for seed in (0, 1))
    assert np.ptp(first) > 0
    assert not np.allclose(first, second)
