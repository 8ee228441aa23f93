"""What all native environments share: the language of stable-baselines3, its tools, and seeds."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor
from stable_baselines3.common.vec_env import VecMonitor, VecNormalize

from heterps_configs.errors import HeterpsError
from heterps_envs.environments.base.vector_env import NativeVecEnv
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.environments.graph.vector_env import GraphPlacementVecEnv
from heterps_envs.environments.layer.pool import LayerPool
from heterps_envs.environments.layer.vector_env import LayerPlacementVecEnv
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem_sets.chains import generate
from heterps_envs.problem_sets.graphs import generate_graphs

MAKERS: dict[str, Callable[[], NativeVecEnv]] = {
    "stage": lambda: StagePlacementVecEnv(ProblemPool.from_tables(generate(9, seed=3)), 4),
    "layer": lambda: LayerPlacementVecEnv(LayerPool.from_tables(generate(9, seed=3)), 4),
    "graph": lambda: GraphPlacementVecEnv(GraphPool.from_tables(generate_graphs(9, seed=3)), 4),
}
every_environment = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def random_actions(masks: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    return np.asarray(np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=-1))


@every_environment
def test_equal_seeds_give_equal_episodes(make: Callable[[], NativeVecEnv]) -> None:
    def run(seed: int) -> list[NDArray[np.float32]]:
        env, rng, seen = make(), np.random.default_rng(0), []
        env.seed(seed)
        seen.append(env.reset())
        for _ in range(30):
            observations, rewards, _, _ = env.step(random_actions(env.action_masks(), rng))
            seen += [np.asarray(observations), rewards]
        return seen

    first, again, other = run(7), run(7), run(8)
    for one, two in zip(first, again, strict=True):
        np.testing.assert_array_equal(one, two)
    assert any(not np.array_equal(one, two) for one, two in zip(first, other, strict=True))


def test_too_many_episodes_and_no_seed_are_told_before_anything_is_made() -> None:
    pool = GraphPool.from_tables(generate_graphs(1, seed=3))
    many: Any
    for many in (0, -1, 10**9, 2.5, "4"):
        with pytest.raises(HeterpsError, match=r"num_envs: .*allowed: a whole number from 1 to"):
            GraphPlacementVecEnv(pool, many)
    with pytest.raises(HeterpsError, match="seed: is -1"):
        GraphPlacementVecEnv(pool, 1, seed=-1)


@every_environment
def test_an_action_that_is_not_allowed_ends_its_episode_as_stuck(
    make: Callable[[], NativeVecEnv],
) -> None:
    env = make()
    env.seed(1)
    env.reset()
    masks = env.action_masks()
    while masks.all():  # of a graph, until some memory is full
        env.step(np.zeros(4, np.int64))
        masks = env.action_masks()
    forbidden = ~masks.all(axis=1)
    actions = np.where(forbidden, masks.argmin(axis=1), masks.argmax(axis=1))
    _, rewards, dones, infos = env.step(actions)
    assert dones[forbidden].all()
    assert (rewards[forbidden] < 0).all()
    assert not any(infos[index]["is_success"] for index in np.flatnonzero(forbidden))


@every_environment
@pytest.mark.parametrize(
    "actions",
    [np.full(4, -1), np.full(4, 10**6), np.zeros(3, int), np.zeros((4, 1), int), np.full(4, 0.5)],
)
def test_actions_that_are_none_are_refused(
    make: Callable[[], NativeVecEnv], actions: NDArray[Any]
) -> None:
    env = make()
    env.reset()
    with pytest.raises(HeterpsError, match=r"actions: are .*; allowed: 4 whole numbers, one for"):
        env.step(actions)
    env.step(env.action_masks().argmax(axis=1))


@every_environment
def test_single_environments_refuse_what_they_would_misread(
    make: Callable[[], NativeVecEnv],
) -> None:
    env = gym.make(make().get_attr("spec")[0]).unwrapped
    options: Any
    for options, expected in (
        ({"target": 1.0}, "unknown option of reset 'target'"),
        ({"problem": 1.5}, "problem: is of type float; allowed: a whole number from 0 to 8"),
        ({"problem": -1}, "there is no problem -1; allowed: 0 to 8"),
        (5, "options: is of type int; allowed: a mapping of problem"),
    ):
        with pytest.raises(HeterpsError, match=expected):
            env.reset(options=options)
    env.reset(seed=1)
    action: Any
    for action in (-1, 10**6, 0.5, "a", None):
        with pytest.raises(HeterpsError, match=r"action: is .*; allowed: a whole number from 0 to"):
            env.step(action)


@every_environment
def test_attributes_and_methods_are_those_of_every_episode(
    make: Callable[[], NativeVecEnv],
) -> None:
    env = make()
    env.reset()
    assert env.get_attr("num_envs", [0, 2]) == [4, 4]
    env.set_attr("note", "a")
    assert env.get_attr("note", 1) == ["a"]
    masks = env.env_method("action_masks", indices=[1, 3])
    np.testing.assert_array_equal(masks, env.action_masks()[[1, 3]])
    assert env.env_is_wrapped(Monitor) == [False] * 4
    env.close()


@every_environment
def test_what_a_step_returned_stays_as_it_was(make: Callable[[], NativeVecEnv]) -> None:
    env, rng = make(), np.random.default_rng(0)
    env.reset()
    before = env.step(random_actions(env.action_masks(), rng))
    masks = env.action_masks()
    copies = [np.array(part) for part in (*before[:3], masks)]
    env.step(random_actions(masks, rng))
    for part, copy in zip((*before[:3], masks), copies, strict=True):
        np.testing.assert_array_equal(np.asarray(part), copy)


@every_environment
def test_wrappers_and_evaluation_of_sb3_work(make: Callable[[], NativeVecEnv]) -> None:
    wrapped = VecNormalize(VecMonitor(make()), norm_obs=False)
    model = MaskablePPO("MlpPolicy", wrapped, n_steps=8, batch_size=16, n_epochs=1, seed=0)
    model.learn(64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        rewards, lengths = evaluate_policy(
            model, VecMonitor(make()), n_eval_episodes=6, return_episode_rewards=True
        )
    assert isinstance(rewards, list)
    assert len(rewards) == 6
    assert np.isfinite(rewards).all()
    assert isinstance(lengths, list)
    assert min(lengths) >= 1
