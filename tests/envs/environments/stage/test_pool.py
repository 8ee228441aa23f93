"""The pool draws what a search will ask for, and problems that teach much more often."""

import numpy as np
import pytest
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError
from heterps_envs.environments.base.state import COMPLETE
from heterps_envs.environments.stage.episodes import StageEpisodes
from heterps_envs.environments.stage.pool import LEAST_WEIGHT, ProblemPool
from heterps_envs.environments.stage.state import Limits
from heterps_envs.problem_sets.chains import generate


def no_limits(count: int) -> NDArray[np.float64]:
    return np.full((2, count), np.inf)


@pytest.fixture
def pool() -> ProblemPool:
    return ProblemPool.from_tables(generate(20, seed=4), target_range=(1.0, 1.12))


def test_targets_lie_near_the_best_known_placement_and_some_far_above(pool: ProblemPool) -> None:
    rng = np.random.default_rng(0)
    rows, (target_s, limit_s, price_limit) = pool.draw(rng, 4000)
    excess = target_s / pool.bottleneck_s[rows] - 1
    assert excess.min() > 0
    assert 0.35 < (excess < 0.01).mean() < 0.6
    assert 0.05 < (excess > 0.13).mean() < 0.12
    fill_s = pool.step_time_s[rows] - pool.bottleneck_s[rows]
    assert (limit_s > fill_s).all()
    assert 0.2 < np.isinf(limit_s).mean() < 0.3
    assert np.isinf(price_limit).all()


def test_problems_that_are_neither_solved_nor_hopeless_are_drawn_more_often(
    pool: ProblemPool,
) -> None:
    pool.shortfall[:] = np.where(np.arange(len(pool.shortfall)) % 2, 0.0, 1.0)
    pool.shortfall[3] = 0.5
    shares = []
    for pool.prioritised_share in (0.0, 1.0):
        rows = pool.draw(np.random.default_rng(1), 2000)[0]
        shares.append((rows == 3).mean())
    weight, others = 0.25 + LEAST_WEIGHT, LEAST_WEIGHT * (len(pool.shortfall) - 1)
    assert shares[0] == pytest.approx(1 / len(pool.shortfall), rel=0.3)
    assert shares[1] == pytest.approx(weight / (weight + others), rel=0.1)


def test_failures_raise_the_shortfall_and_successes_lower_it(pool: ProblemPool) -> None:
    episodes = StageEpisodes(pool, 2)
    which, problems = np.arange(2), np.array([0, 1])
    episodes.begin(which, problems, Limits(4 * pool.bottleneck_s[problems], *no_limits(2)))
    episodes.rows.status[:], episodes.rows.behind_s[:] = COMPLETE, pool.step_time_s[problems]
    episodes.rows.behind_s[1] *= 2.0
    before = pool.shortfall[:2].copy()
    pool.improve(episodes.rows, which)
    assert pool.shortfall[0] < before[0]
    assert pool.shortfall[1] > before[1]


def test_better_placements_become_the_references_if_the_pool_keeps_them(pool: ProblemPool) -> None:
    episodes = StageEpisodes(pool, 1)
    best = float(pool.step_time_s[2])
    episodes.begin(np.array([0]), np.array([2]), Limits(np.array([4 * best]), *no_limits(1)))
    episodes.rows.status[0], episodes.rows.behind_s[0] = COMPLETE, 0.9 * best
    episodes.rows.fill_s[0] = 0.1 * best
    pool.improve(episodes.rows, np.array([0]))
    assert pool.step_time_s[2] == best
    pool.keeps_best = True
    pool.improve(episodes.rows, np.array([0]))
    assert pool.step_time_s[2] == pytest.approx(0.9 * best)
    assert pool.bottleneck_s[2] == pytest.approx(0.8 * best)


def test_a_problem_that_no_limits_help_is_refused(pool: ProblemPool) -> None:
    pool.problems.memory_bytes[0] *= 1e-6
    with pytest.raises(HeterpsError, match="problem 0 of the pool has no placement"):
        StageEpisodes(pool, 1).begin(np.array([0]), np.array([0]), Limits(*np.ones((3, 1))))
