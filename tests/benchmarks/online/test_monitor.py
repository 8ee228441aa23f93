"""The drift monitor's error rates: what is drawn, and what counts as a delay."""

from __future__ import annotations

import numpy as np

from benchmarks.online import monitor


def test_a_quiet_subject_tells_a_drift_within_a_few_steps_and_nothing_without_one() -> None:
    rng = np.random.default_rng(0)
    quiet = monitor.NOISES["2 %"]
    assert monitor._told(np.exp(quiet(rng, 300))) == []
    assert 5 <= monitor._delay(quiet, 1.5, rng) <= 8


def test_a_drift_that_is_never_told_is_later_than_all_steps() -> None:
    rng = np.random.default_rng(0)
    assert monitor._delay(monitor.NOISES["2 %"], 1.01, rng) == monitor.DRIFT_STEPS + 1


def test_every_kind_of_noise_has_the_length_that_was_asked_for() -> None:
    rng = np.random.default_rng(0)
    assert all(len(noise(rng, 50)) == 50 for noise in monitor.NOISES.values())
    assert set(monitor.ASKED) <= set(monitor.NOISES)
