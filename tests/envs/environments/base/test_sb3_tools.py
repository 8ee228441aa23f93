"""Tools of stable-baselines3 take our environments by id, and tell them by their specs."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from pathlib import Path

import gymnasium as gym
import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from stable_baselines3 import PPO
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv, VecEnv, VecMonitor

from heterps_envs.environments.base.vector_env import NativeVecEnv
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.environments.graph.vector_env import GraphPlacementVecEnv
from heterps_envs.environments.layer.pool import LayerPool
from heterps_envs.environments.layer.vector_env import LayerPlacementVecEnv
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.priced_pool import PricedPool
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem_sets.chains import generate
from heterps_envs.problem_sets.graphs import generate_graphs
from heterps_envs.registration import (
    GRAPH_PLACEMENT,
    LAYER_PLACEMENT,
    PRICED_STAGE_PLACEMENT,
    STAGE_PLACEMENT,
)

CHAINS = generate(6, seed=3, layers=(4, 6), classes=(2, 3))
NATIVE: dict[str, Callable[[], NativeVecEnv]] = {
    STAGE_PLACEMENT: lambda: StagePlacementVecEnv(ProblemPool.from_tables(CHAINS), 3),
    PRICED_STAGE_PLACEMENT: lambda: StagePlacementVecEnv(
        PricedPool.from_tables(CHAINS), 3, with_prices=True
    ),
    LAYER_PLACEMENT: lambda: LayerPlacementVecEnv(LayerPool.from_tables(CHAINS), 3),
    GRAPH_PLACEMENT: lambda: GraphPlacementVecEnv(
        GraphPool.from_tables(generate_graphs(4, seed=3, nodes=(5, 7), devices=(2, 3))), 3
    ),
}
every_id = pytest.mark.parametrize("env_id", NATIVE)


def made(
    env_id: str, num_envs: int = 2, kind: type[DummyVecEnv | SubprocVecEnv] = DummyVecEnv
) -> VecEnv:
    """As a user makes it who imports nothing of ours."""
    name = f"heterps_envs.registration:{env_id}"
    return make_vec_env(name, n_envs=num_envs, seed=0, vec_env_cls=kind)


@every_id
def test_environments_made_by_id_tell_their_spec(env_id: str) -> None:
    env = made(env_id)
    assert [spec.id for spec in env.get_attr("spec")] == [env_id] * 2
    env.close()


@pytest.mark.slow
def test_an_environment_in_another_process_tells_its_spec() -> None:
    env = made(STAGE_PLACEMENT, 1, SubprocVecEnv)
    try:
        assert [spec.id for spec in env.get_attr("spec")] == [STAGE_PLACEMENT]
        assert np.asarray(env.env_method("action_masks")).shape == (1, env.action_space.n)  # type: ignore[attr-defined]
    finally:
        env.close()


@every_id
def test_the_spec_of_a_native_environment_makes_the_single_one_on_its_pool(env_id: str) -> None:
    native = NATIVE[env_id]()
    specs = native.get_attr("spec", [0, 2])
    assert [spec.id for spec in specs] == [env_id] * 2
    # VecMonitor asks for it, too.
    assert VecMonitor(native).get_attr("spec")[0].id == env_id
    single = gym.make(specs[0])
    assert single.observation_space == native.observation_space
    assert single.action_space == native.action_space
    rows = {single.reset(seed=seed)[1]["problem"] for seed in range(20)}
    assert max(rows) < native.pool.problems.num_problems


@every_id
def test_plain_ppo_is_evaluated_on_environments_made_by_id(env_id: str) -> None:
    env = made(env_id)
    model = PPO("MlpPolicy", env, n_steps=8, batch_size=16, n_epochs=1, seed=0, device="cpu")
    model.learn(16)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rewards, lengths = evaluate_policy(
            model, env, n_eval_episodes=3, return_episode_rewards=True
        )
    assert isinstance(rewards, list)
    assert isinstance(lengths, list)
    assert np.isfinite(rewards).all()
    assert min(lengths) >= 1
    env.close()


@every_id
@pytest.mark.parametrize("is_native", [True, False], ids=["native", "by id"])
def test_the_callback_that_evaluates_with_masks_keeps_the_best_model(
    env_id: str, is_native: bool, tmp_path: Path
) -> None:
    def make() -> VecEnv:
        return VecMonitor(NATIVE[env_id]()) if is_native else made(env_id)

    callback = MaskableEvalCallback(
        make(), n_eval_episodes=3, eval_freq=8, best_model_save_path=str(tmp_path),
        log_path=str(tmp_path), verbose=0,
    )  # fmt: skip
    model = MaskablePPO(
        "MlpPolicy", make(), n_steps=8, batch_size=16, n_epochs=1, seed=0, device="cpu"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.learn(32, callback=callback)
    assert np.isfinite(callback.best_mean_reward)
    assert MaskablePPO.load(tmp_path / "best_model.zip", device="cpu").num_timesteps > 0
    with np.load(tmp_path / "evaluations.npz") as kept:
        assert kept["results"].shape[1] == 3
