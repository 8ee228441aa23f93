"""Trained policies are models of sb3-contrib: evaluated, kept and trained by its own tools."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_masked
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import VecEnv, VecMonitor

from heterps_agents.learned.policy import Policy
from heterps_agents.training.network import maskable_ppo, network_of
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.priced_pool import PricedPool
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem_sets.chains import generate

CHAINS = generate(12, seed=5, layers=(4, 8), classes=(2, 3))
KINDS = {
    "generalist": ("StagePlacement", ProblemPool.from_tables(CHAINS)),
    "price-generalist": ("PricedStagePlacement", PricedPool.from_tables(CHAINS)),
}
every_policy = pytest.mark.parametrize("name", KINDS)


def by_id(name: str) -> VecEnv:
    kind, pool = KINDS[name]
    env_id = f"heterps_envs.registration:heterps/{kind}-v0"
    return make_vec_env(env_id, n_envs=2, seed=1, env_kwargs={"pool": pool})


def native(name: str) -> VecEnv:
    pool = KINDS[name][1]
    return VecMonitor(StagePlacementVecEnv(pool, 2, 1, with_prices=isinstance(pool, PricedPool)))


@every_policy
@pytest.mark.parametrize("made", [by_id, native])
def test_a_shipped_policy_is_evaluated_with_masks_and_without(
    name: str, made: Callable[[str], VecEnv]
) -> None:
    env = made(name)
    model = maskable_ppo(Policy.load(name), env)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for evaluate in (evaluate_policy, evaluate_masked):
            env.seed(3)
            rewards, _ = evaluate(model, env, n_eval_episodes=30, return_episode_rewards=True)
            # Near the best known placement: 1; one that is stuck has less than 0.
            assert np.mean(rewards) > 0.5, evaluate


@every_policy
def test_the_model_says_what_the_policy_says(name: str) -> None:
    policy, env = Policy.load(name), native(name)
    model = maskable_ppo(policy, env)
    weights = network_of(model).exported({}).weights
    assert weights.keys() == policy.weights.keys()
    for key, value in weights.items():
        np.testing.assert_array_equal(value, policy.weights[key])


def test_a_shipped_policy_is_trained_on_and_comes_back_from_a_file(tmp_path: Path) -> None:
    name = "generalist"
    callback = MaskableEvalCallback(
        native(name), n_eval_episodes=10, eval_freq=16, best_model_save_path=str(tmp_path),
        verbose=0,
    )  # fmt: skip
    model = maskable_ppo(Policy.load(name), native(name), n_steps=16, batch_size=16, seed=0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(64, callback=callback)
    assert callback.best_mean_reward > 0.5
    again = MaskablePPO.load(tmp_path / "best_model.zip", env=native(name), device="cpu")
    assert np.mean(evaluate_masked(again, native(name), n_eval_episodes=10)[0]) > 0.5
    policy = network_of(again).exported({"command": "own"})
    policy.save(tmp_path / "policy.npz")
    assert Policy.load(tmp_path / "policy.npz").meta["command"] == "own"
