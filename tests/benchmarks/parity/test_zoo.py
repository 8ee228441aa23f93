"""Models of several towers and kinds of input train under a plan as in one process."""

from __future__ import annotations

import pytest

from benchmarks.parity.plans import plan_of, problem_of
from benchmarks.parity.runs import compare
from benchmarks.parity.zoo import tiny_profile


@pytest.mark.slow
@pytest.mark.parametrize(("name", "num_layers"), [("clip", 12), ("llava", 12), ("wav2vec2", 13)])
def test_a_model_is_traced_from_its_config_and_trains_under_four_stages(
    name: str, num_layers: int
) -> None:
    profile = tiny_profile(name)
    assert profile.num_layers == num_layers
    problem = problem_of(profile, "unequal cuts", "1f1b", "adamw")
    outcome = compare(problem, plan_of(problem, "unequal cuts"), seed=0, num_steps=2)
    assert outcome.order_is_identical
    assert outcome.loss < 1e-5
    assert outcome.parameter < 1e-4
