"""Layer placement: the single and the native environment keep their contracts and agree."""

from __future__ import annotations

import math
import warnings
from dataclasses import replace
from itertools import product
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray
from stable_baselines3.common.env_checker import check_env as check_env_of_sb3

from heterps_configs.errors import HeterpsError
from heterps_envs import registration
from heterps_envs.closed_form.formula import CUT_BIT, evaluate
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.layer.env import LayerPlacementEnv
from heterps_envs.environments.layer.pool import LayerPool
from heterps_envs.environments.layer.provisioning import provision
from heterps_envs.environments.layer.vector_env import LayerPlacementVecEnv
from heterps_envs.problem_sets.chains import generate
from tests.envs.small_problems import random_tables


@pytest.fixture(scope="module")
def tables() -> list[CostTables]:
    return generate(40, seed=9)


def random_actions(masks: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    return np.asarray(np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=-1))


def place(env: LayerPlacementEnv, kinds: NDArray[np.int64]) -> tuple[float, dict[str, Any], bool]:
    """Takes these classes; the last reward, its info, and whether all were allowed."""
    for kind in kinds:
        is_allowed = bool(env.action_masks()[kind])
        _, reward, terminated, _, info = env.step(kind)
        if terminated:
            break
    return reward, info, is_allowed


def test_passes_the_checkers_of_gymnasium_and_sb3() -> None:
    registration.register()
    env = gym.make("heterps_envs.registration:heterps/LayerPlacement-v0", objective="price")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped, skip_render_check=True)
        check_env_of_sb3(env.unwrapped)


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["throughput", "price"])
def test_observations_stay_small_over_ten_thousand_random_steps(objective: str) -> None:
    tables = generate(200, seed=11, classes=(2, 8), count_range=(1, 16))
    pool = LayerPool.from_tables(tables, objective=objective)
    env = LayerPlacementVecEnv(pool, num_envs=500, seed=1)
    rng, largest = np.random.default_rng(0), float(np.abs(env.reset()).max())
    for _ in range(40 if objective == "throughput" else 20):
        env.step_async(random_actions(env.action_masks(), rng))
        observations, rewards, _, _ = env.step_wait()
        assert np.isfinite(rewards).all()
        assert (rewards >= -6).all()
        largest = max(largest, float(np.abs(observations).max()))
    assert 1 < largest <= 4


@pytest.mark.parametrize(("objective", "with_cuts"), [("throughput", True), ("price", False)])
def test_single_and_vector_environment_agree_step_by_step(
    tables: list[CostTables], objective: str, with_cuts: bool
) -> None:
    pool = LayerPool.from_tables(tables, 4, objective, with_cuts=with_cuts)
    vector = LayerPlacementVecEnv(pool, num_envs=12, seed=2)
    rng, observations = np.random.default_rng(3), vector.reset()
    rows = vector.episodes.rows
    singles = [LayerPlacementEnv(pool=pool) for _ in range(12)]

    def begin(index: int) -> NDArray[np.float32]:
        options = {"problem": rows.problem[index], "floor_s": rows.floor_s[index]}
        return singles[index].reset(options=options)[0]

    for index in range(12):
        np.testing.assert_array_equal(begin(index), observations[index])
    verdicts: set[object] = set()
    for step in range(100):
        masks = vector.action_masks()
        actions = random_actions(masks, rng)
        if step % 20 == 19:
            actions[0] = int(np.argmin(masks[0]))  # not allowed, unless all are
        vector.step_async(actions)
        observations, rewards, dones, infos = vector.step_wait()
        for index, env in enumerate(singles):
            np.testing.assert_array_equal(env.action_masks(), masks[index])
            observation, reward, terminated, truncated, info = env.step(actions[index])
            assert not truncated
            assert terminated == dones[index]
            assert reward == pytest.approx(rewards[index], rel=1e-5, abs=1e-6)
            expected = infos[index]["terminal_observation"] if terminated else observations[index]
            np.testing.assert_array_equal(observation, expected)
            if terminated:
                verdicts.add(info["verdict"])
                assert infos[index]["verdict"] == info["verdict"]
                assert infos[index].get("step_time_s") == info.get("step_time_s")
                assert infos[index]["is_success"] == (info["verdict"] == "fits")
                np.testing.assert_array_equal(begin(index), observations[index])
    assert {"fits", "stuck"} <= verdicts


def test_equal_seeds_give_equal_episodes(tables: list[CostTables]) -> None:
    env = LayerPlacementEnv(tables)
    first, _ = env.reset(seed=5)
    again, info = env.reset(seed=5)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(info["action_mask"], env.action_masks())
    vector = LayerPlacementVecEnv(LayerPool.from_tables(tables), num_envs=8)
    vector.seed(5)
    before = vector.reset()
    assert (vector.reset() != before).any()
    vector.seed(5)
    np.testing.assert_array_equal(vector.reset(), before)


@pytest.mark.parametrize("with_cuts", [False, True])
def test_rewards_and_masks_agree_with_all_placements_of_small_problems(with_cuts: bool) -> None:
    seen: set[object] = set()
    for seed in range(8):
        tables = random_tables(seed, 4, (2, 1, 2), is_gpipe=seed % 4 == 0)
        kernel = kernel_tables(tables)
        every = np.array(list(product(range(6 if with_cuts else 3), repeat=4)))
        # A cut is only between layers of one class, and is said with the layer behind it.
        is_cut = every >= 3
        kinds = every % 3
        is_known = ~is_cut[:, 0] & (~is_cut[:, 1:] | (kinds[:, 1:] == kinds[:, :-1])).all(axis=1)
        marked = kinds.copy()
        marked[:, :-1] |= np.where(is_cut[:, 1:], CUT_BIT, 0)
        codes = provision(marked[is_known], kernel)
        step_time_s, _, _ = evaluate(codes, kernel)
        env = LayerPlacementEnv([tables], max_classes=3, with_cuts=with_cuts)
        reference_s = env._episodes.pool.step_time_s[0]
        for actions, code, seconds in zip(every[is_known], codes, step_time_s, strict=True):
            env.reset()
            reward, info, is_allowed = place(env, actions)
            seen.add(info["verdict"])
            if math.isfinite(seconds):  # no mask forbids a placement that can be used
                assert is_allowed
                assert info["verdict"] == "fits"
                assert info["step_time_s"] == pytest.approx(seconds)
                np.testing.assert_array_equal(info["code"], code)
                assert reward == pytest.approx(max(-3, math.log(reference_s / seconds)))
            else:
                assert reward < -3
        for actions in every[~is_known][:20]:
            env.reset()
            assert not place(env, actions)[2]
    assert seen == {"fits", "out of memory", "stuck"}


def test_a_floor_under_the_objective_price() -> None:
    tables = random_tables(3, 4, (2, 2), memory_bytes=np.full(2, 1e9), num_micro_batches=8)
    env = LayerPlacementEnv([tables], objective="price", longest_step=1.2)
    _, info = env.reset()
    reference_s = env._episodes.pool.step_time_s[0]
    assert info["floor_s"] == pytest.approx(1.2 * reference_s)
    rewards: dict[object, list[float]] = {}
    for floor_s in (1e9, 1.2 * reference_s, 1e-9):
        for kinds in product(range(2), repeat=4):
            env.reset(options={"floor_s": floor_s})
            reward, info, _ = place(env, np.array(kinds))
            rewards.setdefault(info["verdict"], []).append(reward)
            if info["verdict"] == "fits":
                assert info["step_time_s"] <= floor_s
    assert set(rewards) <= {"fits", "misses the floor", "stuck"}
    assert max(rewards["misses the floor"]) < -3 <= min(rewards["fits"])
    assert min(rewards["misses the floor"]) >= -4


def test_placements_that_lack_more_are_worth_less() -> None:
    rich = random_tables(4, 4, (1, 1), num_micro_batches=4, is_gpipe=True)
    needed = rich.state_bytes.sum() + 4 * rich.activation_bytes.sum()
    worths = []
    for share in (1.0, 0.9, 0.7):
        tables = replace(rich, memory_bytes=np.full(2, share * needed))
        env = LayerPlacementEnv([tables], max_classes=2)
        env.reset()
        # The mask forbids the last layer; what lacks is measured where it does not know better.
        worths.append(place(env, np.zeros(4, np.int64))[0])
    assert worths[0] > -3
    assert worths[0] > worths[1] >= worths[2]


def test_an_action_that_is_not_allowed_ends_the_episode_as_stuck(tables: list[CostTables]) -> None:
    env = LayerPlacementEnv(tables)
    _, info = env.reset(seed=1)
    _, reward, terminated, _, info = env.step(int(np.flatnonzero(~info["action_mask"])[0]))
    assert terminated
    assert reward == -6.0
    assert info["verdict"] == "stuck"
    assert "code" not in info


def test_what_is_not_allowed_is_refused(tables: list[CostTables]) -> None:
    env = LayerPlacementEnv(tables)
    with pytest.raises(HeterpsError, match="there is no problem 999; allowed: 0 to 39"):
        env.reset(options={"problem": 999})
    with pytest.raises(HeterpsError, match="no objective 'speed'; allowed: throughput, price"):
        LayerPlacementEnv(tables, objective="speed")
    with pytest.raises(HeterpsError, match="a floor must be more than 0 seconds"):
        LayerPlacementEnv(tables, longest_step=-1.0)
    with pytest.raises(HeterpsError, match=r"floor_s: is .* allowed: a number above 0"):
        env.reset(options={"floor_s": 0.0})
    pool = LayerPool.from_tables(tables)
    with pytest.raises(HeterpsError, match="a pool has problems, objective, longest_step and with"):
        LayerPlacementEnv(pool=pool, objective="price")
    with pytest.raises(HeterpsError, match="2 floors for 40 problems"):
        LayerPool.from_tables(tables, floors_s=[1.0, 2.0])
