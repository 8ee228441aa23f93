"""Seconds of training make a policy better."""

from __future__ import annotations

from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from heterps_agents.learned.policy import Policy
from heterps_agents.training.evaluation import Gap, HeldOut
from heterps_agents.training.train import train
from heterps_configs.documents.training import ChainTrainingConfig
from heterps_envs.problem_sets.chains import generate

SMALL = ChainTrainingConfig(
    total_steps=1, pool_size=256, num_environments=128, evaluation_problems=8, curve_problems=0
)


@pytest.fixture(scope="module")
def held() -> HeldOut:
    # Chance does badly here: on other sets it finds half of the optima.
    return HeldOut(generate(40, seed=78))


def is_clearly_better(after: Gap, before: Gap) -> bool:
    return (
        after.mean < min(0.1, 0.8 * before.mean)
        and after.median < 0.5 * before.median
        and after.solved > before.solved
    )


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_seconds_of_training_beat_an_untrained_policy(
    random_policy: Policy, held: HeldOut, tmp_path: Path
) -> None:
    rewards: list[float] = []
    config = SMALL.changed(total_steps=30_000)
    result = train(config, tmp_path, progress=lambda state: rewards.append(state.reward))
    assert rewards[-1] > rewards[0] + 0.3
    before, after = (held.gap(policy, width=1) for policy in (random_policy, result.policy))
    assert is_clearly_better(after, before)
    assert held.gap(result.policy, width=16).median < 0.02


@pytest.mark.alone
def test_a_budget_in_seconds_leaves_ppo_all_of_its_learning_rates(tmp_path: Path) -> None:
    config = SMALL.changed(
        total_steps=None, budget_s=4.0, imitation_passes=10, imitation_problems=512,
        pool_size=64, evaluation_problems=1,
    )  # fmt: skip
    train(config, tmp_path)
    events = EventAccumulator(str(tmp_path / "learning")).Reload()
    rates = [entry.value for entry in events.Scalars("train_ppo/learning_rate")]
    assert rates[0] > 0.8 * config.learning_rate
    assert rates[-1] < 0.4 * config.learning_rate


@pytest.mark.slow
def test_seconds_of_imitation_beat_an_untrained_policy(
    random_policy: Policy, held: HeldOut, tmp_path: Path
) -> None:
    config = SMALL.changed(
        imitation_passes=20, imitation_problems=256, imitation_refreshed=0, minibatch_size=512
    )
    policy = train(config, tmp_path).policy
    before, after = (held.gap(each, width=1) for each in (random_policy, policy))
    assert is_clearly_better(after, before)
