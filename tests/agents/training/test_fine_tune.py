"""Fine-tuning goes on from a policy, and leaves it as it is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from heterps_agents.learned.policy import Policy
from heterps_agents.training.fine_tune import fine_tune
from heterps_configs import library
from heterps_configs.errors import HeterpsError
from heterps_envs.problem_sets.chains import generate


@pytest.mark.slow
def test_fine_tuning_changes_a_copy(random_policy: Policy) -> None:
    before = {name: value.copy() for name, value in random_policy.weights.items()}
    tuned = fine_tune(random_policy, generate(1, seed=8), seconds=2.0, seed=1)
    assert tuned.meta["fine_tuned_steps"] > 0
    assert any((tuned.weights[name] != value).any() for name, value in before.items())
    for name, value in random_policy.weights.items():
        np.testing.assert_array_equal(value, before[name])


def test_fine_tuning_without_a_problem_is_refused(random_policy: Policy) -> None:
    with pytest.raises(HeterpsError, match="at least one problem"):
        fine_tune(random_policy, [], seconds=1.0)


def test_how_it_learns_is_a_configuration_of_ones_own(
    random_policy: Policy, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = library.copy("fine-tuning", tmp_path / "training")
    own.write_text("problems: graphs\nbudget_s: 1\n")
    monkeypatch.setenv(library.CONFIG_PATH_VARIABLE, str(tmp_path))
    with pytest.raises(HeterpsError, match="fine-tuning: is a training configuration for graphs"):
        fine_tune(random_policy, generate(1, seed=8), seconds=1.0)
