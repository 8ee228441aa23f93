"""What a resumed run begins with."""

import numpy as np

from heterps_agents.training.problems import (
    ProblemSource,
    pool_of,
)
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from tests.agents.training.conftest import CHAINS


def test_an_environment_goes_on_where_another_stood() -> None:
    def made() -> StagePlacementVecEnv:
        pool = pool_of(ProblemSource(CHAINS).take(8), CHAINS.target_range, keeps_best=True)
        return StagePlacementVecEnv(pool, num_envs=6, seed=1)

    first, second = made(), made()
    first.reset()
    for _ in range(5):
        first.step(first.action_masks().argmax(axis=1))
    second.restore(first.state())
    for _ in range(10):
        actions = first.action_masks().argmax(axis=1)
        np.testing.assert_array_equal(second.action_masks().argmax(axis=1), actions)
        for mine, other in zip(first.step(actions)[:3], second.step(actions)[:3], strict=True):
            np.testing.assert_array_equal(mine, other)
