"""The Gymnasium environment and its native vector form keep their contracts and agree."""

import subprocess
import sys
import warnings
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray
from stable_baselines3.common.env_checker import check_env as check_env_of_sb3

from heterps_configs.errors import HeterpsError
from heterps_envs import registration
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.stage.env import StagePlacementEnv
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem_sets.chains import generate


@pytest.fixture(scope="module")
def tables() -> list[CostTables]:
    return generate(40, seed=9)


def random_actions(masks: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    return np.asarray(np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=-1))


def test_passes_the_checkers_of_gymnasium_and_sb3() -> None:
    registration.register()
    env = gym.make("heterps_envs.registration:heterps/StagePlacement-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
        check_env_of_sb3(env.unwrapped)


def test_naming_the_package_imports_neither_gymnasium_nor_torch() -> None:
    script = "import heterps_envs, sys; print({'gymnasium', 'torch'} & set(sys.modules))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "set()"


@pytest.mark.slow
def test_observations_stay_small_over_twenty_thousand_random_steps() -> None:
    pool = ProblemPool.from_tables(generate(400, seed=11, classes=(2, 8), count_range=(1, 16)))
    env = StagePlacementVecEnv(pool, num_envs=500, seed=1)
    rng, largest = np.random.default_rng(0), float(np.abs(env.reset()).max())
    for _ in range(40):
        env.step_async(random_actions(env.action_masks(), rng))
        observations, rewards, _, _ = env.step_wait()
        assert np.isfinite(observations).all()
        assert np.isfinite(rewards).all()
        largest = max(largest, float(np.abs(observations).max()))
    assert 1 < largest <= 8


def test_single_and_vector_environment_agree_step_by_step(tables: list[CostTables]) -> None:
    vector = StagePlacementVecEnv(ProblemPool.from_tables(tables, 4), num_envs=12, seed=2)
    rng = np.random.default_rng(3)
    observations = vector.reset()
    rows = vector.episodes.rows
    singles = [StagePlacementEnv(tables, max_classes=4) for _ in range(12)]

    def begin(index: int) -> NDArray[np.float32]:
        options = {
            "problem": rows.problem[index],
            "target_s": rows.target_s[index],
            "fill_limit_s": rows.fill_limit_s[index],
        }
        return singles[index].reset(options=options)[0]

    for index in range(12):
        np.testing.assert_array_equal(begin(index), observations[index])
    finished = 0
    for _ in range(25):
        masks = vector.action_masks()
        actions = random_actions(masks, rng)
        vector.step_async(actions)
        observations, rewards, dones, infos = vector.step_wait()
        for index, env in enumerate(singles):
            np.testing.assert_array_equal(env.action_masks(), masks[index])
            observation, reward, terminated, truncated, _ = env.step(actions[index])
            assert not truncated
            assert terminated == dones[index]
            assert reward == pytest.approx(rewards[index], rel=1e-5, abs=1e-6)
            expected = infos[index]["terminal_observation"] if terminated else observations[index]
            np.testing.assert_array_equal(observation, expected)
            if terminated:
                finished += 1
                assert infos[index]["episode"]["r"] == pytest.approx(reward, rel=1e-5, abs=1e-6)
                np.testing.assert_array_equal(begin(index), observations[index])
    assert finished > 12


def test_vector_environment_speaks_the_language_of_masked_sb3(tables: list[CostTables]) -> None:
    env = StagePlacementVecEnv(ProblemPool.from_tables(tables), num_envs=3)
    env.reset()
    assert env.has_attr("action_masks")
    assert not env.has_attr("no_such_thing")
    masks = env.env_method("action_masks")
    assert [mask.shape for mask in masks] == [env.action_masks().shape[1:]] * 3
    before = env.step(random_actions(env.action_masks(), np.random.default_rng(0)))
    copies = [np.array(part) for part in before[:3]]
    env.step(random_actions(env.action_masks(), np.random.default_rng(1)))
    for part, copy in zip(before[:3], copies, strict=True):
        np.testing.assert_array_equal(part, copy)


def test_equal_seeds_give_equal_episodes(tables: list[CostTables]) -> None:
    env = StagePlacementEnv(tables)
    first, _ = env.reset(seed=5)
    again, info = env.reset(seed=5)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(info["action_mask"], env.action_masks())


def test_a_finished_episode_describes_its_placement(tables: list[CostTables]) -> None:
    env = StagePlacementEnv(tables)
    rng = np.random.default_rng(0)
    for seed in range(200):
        env.reset(seed=seed, options={"fill_limit_s": np.inf})
        terminated = False
        while not terminated:
            action = int(random_actions(env.action_masks(), rng))
            _, reward, terminated, _, info = env.step(action)
        assert -1 <= reward <= 2
        if "code" in info:
            assert 8 <= len(info["code"]) <= 32
            assert info["step_time_s"] > 0
            assert reward > 0
            return
    pytest.fail("no random episode finished")


def test_an_action_that_is_not_allowed_ends_the_episode_as_stuck(tables: list[CostTables]) -> None:
    env = StagePlacementEnv(tables)
    _, info = env.reset(seed=1)
    _, reward, terminated, _, _ = env.step(np.flatnonzero(~info["action_mask"])[0])
    assert terminated
    assert reward == -1.0


def test_an_unknown_problem_is_refused(tables: list[CostTables]) -> None:
    env = StagePlacementEnv(tables)
    with pytest.raises(HeterpsError, match="there is no problem 999; allowed: 0 to"):
        env.reset(options={"problem": 999})


def test_limits_that_are_none_are_refused() -> None:
    env = StagePlacementEnv(generate(3, seed=1))
    limit: Any
    for limit in (-1.0, 0.0, np.nan):
        with pytest.raises(HeterpsError, match=r"target_s: is .*; allowed: a number above 0"):
            env.reset(options={"target_s": limit})
    with pytest.raises(HeterpsError, match="target_s: is of type str; allowed: a number above 0"):
        env.reset(options={"target_s": "1"})
