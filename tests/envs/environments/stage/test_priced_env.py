"""Stage placement under price limits: limits hold, rewards compare what the objective counts."""

from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from stable_baselines3.common.env_checker import check_env as check_env_of_sb3

from heterps_configs.errors import HeterpsError
from heterps_envs.closed_form.formula import FITS, evaluate_one
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.base.state import COMPLETE
from heterps_envs.environments.stage.env import StagePlacementEnv
from heterps_envs.environments.stage.packed import pack_problems
from heterps_envs.environments.stage.priced_env import PricedStagePlacementEnv
from heterps_envs.environments.stage.priced_pool import MOST_ANCHORS, Anchor, PricedPool
from heterps_envs.environments.stage.state import (
    NUM_CANDIDATE_FEATURES,
    NUM_GLOBAL_FEATURES,
    NUM_PRICED_CANDIDATE_FEATURES,
    NUM_PRICED_GLOBAL_FEATURES,
)
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from heterps_envs.problem_sets.chains import generate


@pytest.fixture(scope="module")
def tables() -> list[CostTables]:
    return generate(40, seed=9)


def random_actions(masks: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    return np.asarray(np.where(masks, rng.random(masks.shape), -1.0).argmax(axis=-1))


def test_passes_the_checkers_of_gymnasium_and_sb3() -> None:
    env = gym.make("heterps_envs.registration:heterps/PricedStagePlacement-v0")
    check_env(env.unwrapped)
    check_env_of_sb3(env.unwrapped)


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 10**6), share=st.floats(0.02, 1.0))
def test_finished_placements_keep_their_price_limit_and_memory(seed: int, share: float) -> None:
    tables = generate(8, seed)
    env, rng = PricedStagePlacementEnv(tables, max_classes=4), np.random.default_rng(seed)
    for problem in range(len(env._episodes.pool.step_time_s)):
        packed = env._episodes.pool.problems
        everything = float(packed.device_count[problem] @ packed.price_usd_per_hour[problem])
        limit = share * everything
        options = {"problem": problem, "price_limit_usd_per_hour": limit, "fill_limit_s": np.inf}
        _, info = env.reset(options=options)
        limit, terminated = info["price_limit_usd_per_hour"], False
        while not terminated:
            _, reward, terminated, _, info = env.step(int(random_actions(env.action_masks(), rng)))
            assert -1 <= reward <= 2
        if "code" in info:
            assert info["price_usd_per_hour"] <= limit * (1 + 1e-9)


def test_the_price_in_the_info_is_that_of_the_closed_form(tables: list[CostTables]) -> None:
    env, rng, seen = PricedStagePlacementEnv(tables[:1], max_classes=4), np.random.default_rng(0), 0
    kernel = kernel_tables(tables[0])
    for seed in range(60):
        _, info = env.reset(seed=seed)
        terminated = False
        while not terminated:
            _, _, terminated, _, info = env.step(int(random_actions(env.action_masks(), rng)))
        if "code" in info:
            step_s, price, verdict = evaluate_one(info["code"], kernel, np.zeros(4, np.int64))
            assert verdict == FITS
            assert info["price_usd_per_hour"] == pytest.approx(price)
            assert info["step_time_s"] == pytest.approx(step_s)
            seen += 1
    assert seen > 0


def test_without_a_limit_it_is_stage_placement_with_zeros_behind(tables: list[CostTables]) -> None:
    plain, priced = StagePlacementEnv(tables, 4), PricedStagePlacementEnv(tables, 4)
    options = {"problem": 3, "target_s": 1.0, "fill_limit_s": np.inf}
    expected, _ = plain.reset(seed=1, options=options)
    limits = {"price_limit_usd_per_hour": np.inf}
    got, _ = priced.reset(seed=1, options={**options, **limits})
    candidates = got[:-NUM_PRICED_GLOBAL_FEATURES].reshape(-1, NUM_PRICED_CANDIDATE_FEATURES)
    state = got[-NUM_PRICED_GLOBAL_FEATURES:]
    assert (candidates[:, NUM_CANDIDATE_FEATURES:] == 0).all()
    assert (state[NUM_GLOBAL_FEATURES:] == 0).all()
    same = candidates[:, :NUM_CANDIDATE_FEATURES].ravel(), state[:NUM_GLOBAL_FEATURES]
    np.testing.assert_array_equal(np.concatenate(same), expected)


@pytest.mark.slow
def test_observations_stay_small() -> None:
    pool = PricedPool.from_tables(generate(200, seed=11, classes=(2, 8), count_range=(1, 16)))
    env = StagePlacementVecEnv(pool, num_envs=300, seed=1, with_prices=True)
    rng, largest = np.random.default_rng(0), float(np.abs(env.reset()).max())
    for _ in range(60):
        env.step_async(random_actions(env.action_masks(), rng))
        observations, rewards, _, _ = env.step_wait()
        assert np.isfinite(observations).all()
        assert np.isfinite(rewards).all()
        largest = max(largest, float(np.abs(observations).max()))
    assert 1 < largest <= 4


def pool_with(anchors: list[Anchor], objective: str) -> PricedPool:
    tables = generate(1, seed=2, classes=(2, 2))
    return PricedPool(pack_problems(tables), [anchors], objective=objective)  # type: ignore[arg-type]


@pytest.mark.parametrize("objective", ["price", "budget"])
def test_rewards_compare_with_the_best_anchor_that_keeps_the_limits(objective: str) -> None:
    anchors = [Anchor(1.0, 0.8, 10.0), Anchor(2.0, 1.6, 4.0), Anchor(4.0, 3.2, 1.0)]
    pool = pool_with(anchors, objective)
    env = StagePlacementVecEnv(pool, num_envs=3, with_prices=True)
    env.reset()
    rows = env.episodes.rows
    rows.target_s[:], rows.fill_limit_s[:] = 1.7, 0.5
    rows.price_limit_usd_per_hour[:] = [5.0, 20.0, np.inf]
    rows.status[:], rows.used[:] = COMPLETE, 0
    rows.used[:, 0] = 1
    pool.problems.price_usd_per_hour[0, 0] = 4.0
    rows.behind_s[:] = [2.0, 1.0, 1.0]
    rewards = pool.rewards(rows, np.arange(3))
    # The second costs half of the best anchor, 8 against 4, where prices count.
    second = 1 + 2 * np.log(2.0) if objective == "price" else 1.0
    np.testing.assert_allclose(rewards, [1.0, min(second, 2.0), 1.0])


def test_many_anchors_are_thinned_out_and_the_ends_stay() -> None:
    anchors = [Anchor(1.0 + i, 0.5 + i, 50.0 / (2 + i) ** 2) for i in range(40)]
    pool = pool_with(anchors, "price")
    assert pool.num_anchors[0] == MOST_ANCHORS
    assert tuple(pool.anchors[0, 0]) == anchors[0]
    assert tuple(pool.anchors[0, -1]) == anchors[-1]


def test_every_draw_can_be_kept_by_one_of_its_anchors() -> None:
    anchors = [Anchor(1.0, 0.8, 10.0), Anchor(2.0, 1.6, 4.0), Anchor(4.0, 3.2, 1.0)]
    pool = pool_with(anchors, "price")
    pool.problems.lower_bound_s[:] = 1e-3
    _, (target_s, fill_s, price) = pool.draw(np.random.default_rng(0), 2000)
    assert 0.15 < np.isinf(price).mean() < 0.25
    keeps = [
        (one.bottleneck_s <= target_s)
        & (one.step_time_s - one.bottleneck_s <= fill_s)
        & (one.price_usd_per_hour <= price)
        for one in anchors
    ]
    assert np.any(keeps, axis=0).all()


def test_problems_without_a_placement_are_refused() -> None:
    tables = generate(1, seed=0)
    packed = pack_problems(tables)
    assert packed.num_problems == 1
    hopeless = CostTables(
        **{
            **{name: getattr(tables[0], name) for name in CostTables.__dataclass_fields__},
            "device_count": np.ones_like(tables[0].device_count),
            "memory_bytes": tables[0].state_bytes.max() * np.ones(tables[0].num_classes) * 1.2
            + tables[0].activation_bytes.max() * tables[0].num_micro_batches,
            "activation_bytes": tables[0].activation_bytes,
            "state_bytes": np.full_like(tables[0].state_bytes, tables[0].state_bytes.max()),
        }
    )
    with pytest.raises(HeterpsError, match="greedy rule"):
        PricedPool.from_tables([hopeless])


def test_an_objective_that_there_is_not_is_refused() -> None:
    wrong: Any = "throughput"
    with pytest.raises(HeterpsError, match="there is no objective 'throughput'; allowed: price, b"):
        PricedStagePlacementEnv(generate(3, seed=1), objective=wrong)
