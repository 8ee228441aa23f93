"""The graph environment and its native vector form keep their contracts and agree."""

import dataclasses
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from numpy.typing import NDArray
from stable_baselines3.common.env_checker import check_env as check_env_of_sb3

from heterps_configs.errors import HeterpsError
from heterps_envs import registration
from heterps_envs.environments.base.state import COMPLETE, RUNNING
from heterps_envs.environments.graph.env import GraphPlacementEnv
from heterps_envs.environments.graph.episodes import GraphEpisodes
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.environments.graph.vector_env import GraphPlacementVecEnv
from heterps_envs.graphs.problem import GraphTables
from heterps_envs.graphs.simulator import simulate_graph
from heterps_envs.problem_sets.graphs import generate_graphs


@pytest.fixture(scope="module")
def tables() -> list[GraphTables]:
    return generate_graphs(30, seed=9, nodes=(4, 16), devices=(2, 4))


def random_actions(masks: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    return np.asarray(np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=-1))


@pytest.mark.slow
def test_passes_the_checkers_of_gymnasium_and_sb3() -> None:
    registration.register()
    env = gym.make("heterps_envs.registration:heterps/GraphPlacement-v0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(env.unwrapped)
        check_env_of_sb3(env.unwrapped)


@pytest.mark.slow
def test_observations_stay_small_over_a_hundred_thousand_random_steps() -> None:
    mixed = [
        *generate_graphs(150, seed=11),
        *generate_graphs(20, seed=12, nodes=(96, 200), devices=(6, 8)),
        *generate_graphs(30, seed=13, nodes=(1, 5), devices=(1, 3)),
    ]
    env = GraphPlacementVecEnv(GraphPool.from_tables(mixed), num_envs=500, seed=1)
    rng, largest = np.random.default_rng(0), float(np.abs(env.reset()).max())
    for _ in range(200):
        env.step_async(random_actions(env.action_masks(), rng))
        observations, rewards, _, _ = env.step_wait()
        assert np.isfinite(observations).all()
        assert np.isfinite(rewards).all()
        largest = max(largest, float(np.abs(observations).max()))
    assert 1 < largest <= 8
    assert np.abs(env.pool.guides.node_features).max() <= 8


def test_an_allowed_action_never_breaks_memory_and_the_step_time_is_the_simulators() -> None:
    tables = generate_graphs(120, seed=21, nodes=(6, 30))
    pool = GraphPool.from_tables(tables)
    episodes, rng = GraphEpisodes(pool, len(tables)), np.random.default_rng(2)
    everyone = np.arange(len(tables))
    episodes.begin(everyone, everyone)
    while (episodes.rows.status == RUNNING).any():
        episodes.step(random_actions(episodes.view.allowed, rng))
    complete = np.flatnonzero(episodes.rows.status == COMPLETE)
    assert len(complete) > 110
    for row in complete:
        run = simulate_graph(tables[row], episodes.rows.devices[row, : tables[row].num_nodes])
        assert run.fits
        assert run.step_time_s == pytest.approx(episodes.rows.step_time_s[row], rel=1e-12)
    for row in np.flatnonzero(episodes.rows.status != COMPLETE):
        placed = episodes.rows.position[row]
        devices = episodes.rows.devices[row, :placed]
        held = np.bincount(devices, tables[row].memory_bytes[:placed], tables[row].num_devices)
        needed = held + tables[row].memory_bytes[placed]
        able = np.isfinite(tables[row].forward_s[placed])
        assert (needed[able] > tables[row].device_memory_bytes[able]).all()


def test_a_device_after_which_the_rest_finds_no_memory_is_not_allowed() -> None:
    tables = generate_graphs(1, seed=0, nodes=(3, 3), devices=(2, 2))[0]
    tight = dataclasses.replace(
        tables,
        forward_s=np.ones((3, 2)),
        memory_bytes=np.array([5.0, 5.0, 6.0]),
        device_memory_bytes=np.array([10.0, 6.0]),
    )
    env = GraphPlacementEnv([tight], max_devices=2)
    _, info = env.reset(seed=0)
    for device in (0, 0, 1):
        assert info["action_mask"].tolist() == [device == 0, device == 1]
        _, _, terminated, _, info = env.step(device)
    assert terminated
    assert info["devices"].tolist() == [0, 0, 1]


def test_single_and_vector_environment_agree_step_by_step(tables: list[GraphTables]) -> None:
    vector = GraphPlacementVecEnv(GraphPool.from_tables(tables, max_devices=4), 12, seed=2)
    rng = np.random.default_rng(3)
    observations = vector.reset()
    rows = vector.episodes.rows
    singles = [GraphPlacementEnv(tables, max_devices=4) for _ in range(12)]

    def begin(index: int) -> NDArray[np.float32]:
        return singles[index].reset(options={"problem": rows.problem[index]})[0]

    for index in range(12):
        np.testing.assert_array_equal(begin(index), observations[index])
    finished = 0
    for _ in range(40):
        masks = vector.action_masks()
        actions = random_actions(masks, rng)
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
                finished += 1
                assert infos[index]["episode"]["r"] == pytest.approx(reward, rel=1e-5, abs=1e-6)
                assert infos[index]["problem"] == info["problem"]
                assert infos[index].get("step_time_s") == info.get("step_time_s")
                np.testing.assert_array_equal(begin(index), observations[index])
    assert finished > 12


def test_padding_changes_nothing(tables: list[GraphTables]) -> None:
    tight, roomy = GraphPool.from_tables(tables), GraphPool.from_tables(tables, 64, 16)
    np.testing.assert_array_equal(tight.reference_s, roomy.reference_s)
    first, second = GraphEpisodes(tight, 1), GraphEpisodes(roomy, 1)
    rng = np.random.default_rng(0)
    for problem in range(len(tight.reference_s)):
        for episodes in (first, second):
            episodes.begin(np.array([0]), np.array([problem]))
        devices = tight.problems.max_devices
        while first.rows.status[0] == RUNNING:
            np.testing.assert_array_equal(
                first.view.candidates[0], second.view.candidates[0, :devices]
            )
            np.testing.assert_array_equal(first.view.state, second.view.state)
            assert not second.view.allowed[0, devices:].any()
            action = random_actions(first.view.allowed, rng)
            for episodes in (first, second):
                episodes.step(action)
        assert first.rows.step_time_s[0] == second.rows.step_time_s[0]


def test_a_problem_that_takes_anothers_place_is_as_good_as_new(tables: list[GraphTables]) -> None:
    pool = GraphPool.from_tables(tables[:15], max_nodes=16, max_devices=4)
    fresh = GraphPool.from_tables(tables[15:], max_nodes=16, max_devices=4)
    for row, entry in enumerate(tables[15:]):
        assert pool.replace(row, entry)
    np.testing.assert_array_equal(pool.reference_s, fresh.reference_s)
    for row in range(15):
        nodes = fresh.problems.num_nodes[row]
        for mine, other in zip(pool.producer_edges(row), fresh.producer_edges(row), strict=True):
            np.testing.assert_array_equal(mine, other)
        np.testing.assert_array_equal(
            pool.guides.node_features[row, :nodes], fresh.guides.node_features[row, :nodes]
        )
    both = [GraphEpisodes(entry, 15) for entry in (pool, fresh)]
    for episodes in both:
        episodes.begin(np.arange(15), np.arange(15))
        while (episodes.rows.status == RUNNING).any():
            episodes.step(episodes.view.candidates[:, :, 17].argmax(axis=1))
    np.testing.assert_array_equal(both[0].observations(), both[1].observations())
    np.testing.assert_array_equal(both[0].rows.step_time_s, both[1].rows.step_time_s)


def test_following_the_earliest_finish_gives_no_reward(tables: list[GraphTables]) -> None:
    env = GraphPlacementEnv(tables, max_devices=4)
    rewards = []
    for problem in range(20):
        _, info = env.reset(options={"problem": problem})
        terminated, observation = False, env.reset(options={"problem": problem})[0]
        while not terminated:
            features = observation[: 4 * 28].reshape(4, 28)
            action = int(features[:, 17].argmax())
            observation, reward, terminated, _, info = env.step(action)
        if "step_time_s" in info:
            rewards.append(reward)
    assert sum(abs(reward) < 1e-12 for reward in rewards) >= 15


def test_pictures_are_drawn_on_request(tables: list[GraphTables]) -> None:
    env = GraphPlacementEnv(tables, render_mode="rgb_array")
    env.reset(seed=0)
    image = env.render()
    assert image is not None
    assert image.dtype == np.uint8
    assert image.shape[2] == 3
    assert GraphPlacementEnv(tables).render() is None
    vector = GraphPlacementVecEnv(GraphPool.from_tables(tables), 2, render_mode="rgb_array")
    vector.reset()
    assert [picture is not None for picture in vector.get_images()] == [True, True]


def test_vector_environment_speaks_the_language_of_masked_sb3(tables: list[GraphTables]) -> None:
    env = GraphPlacementVecEnv(GraphPool.from_tables(tables), num_envs=3)
    env.reset()
    assert env.has_attr("action_masks")
    masks = env.env_method("action_masks")
    assert [mask.shape for mask in masks] == [env.action_masks().shape[1:]] * 3
    before = env.step(random_actions(env.action_masks(), np.random.default_rng(0)))
    copies = [np.array(part) for part in before[:3]]
    env.step(random_actions(env.action_masks(), np.random.default_rng(1)))
    for part, copy in zip(before[:3], copies, strict=True):
        np.testing.assert_array_equal(part, copy)


def test_equal_seeds_give_equal_episodes(tables: list[GraphTables]) -> None:
    env = GraphPlacementEnv(tables)
    first, _ = env.reset(seed=5)
    again, info = env.reset(seed=5)
    np.testing.assert_array_equal(first, again)
    np.testing.assert_array_equal(info["action_mask"], env.action_masks())
    vectors = [GraphPlacementVecEnv(GraphPool.from_tables(tables), 8, seed=4) for _ in range(2)]
    for _ in range(3):
        observations = [vector.reset() for vector in vectors]
        np.testing.assert_array_equal(observations[0], observations[1])


def test_an_action_that_is_not_allowed_ends_the_episode_as_stuck(tables: list[GraphTables]) -> None:
    env = GraphPlacementEnv(tables)
    _, info = env.reset(seed=1)
    _, reward, terminated, _, info = env.step(np.flatnonzero(~info["action_mask"])[0])
    assert terminated
    assert reward == -2.0
    assert not info["action_mask"].any()


def test_an_unknown_problem_is_refused(tables: list[GraphTables]) -> None:
    env = GraphPlacementEnv(tables)
    with pytest.raises(HeterpsError, match="there is no problem 999; allowed: 0 to"):
        env.reset(options={"problem": 999})
