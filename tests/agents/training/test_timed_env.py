"""The seconds that an environment takes."""

from sb3_contrib.common.maskable.utils import get_action_masks

from heterps_agents.training.problems import (
    ProblemSource,
    pool_of,
)
from heterps_agents.training.timed_env import TimedVecEnv
from heterps_envs.environments.stage.vector_env import StagePlacementVecEnv
from tests.agents.training.conftest import CHAINS


def test_the_time_in_the_environment_is_counted() -> None:
    pool = pool_of(ProblemSource(CHAINS).take(8), CHAINS.target_range)
    env = TimedVecEnv(StagePlacementVecEnv(pool, num_envs=4))
    env.reset()
    env.step(get_action_masks(env).argmax(axis=1))
    assert env.seconds > 0
