"""Hundreds of stage placement episodes in one call, as a `VecEnv` of stable-baselines3 (torch).

Nothing imports this module at import time; training does when it starts.
"""

from __future__ import annotations

from heterps_envs.environments.base.vector_env import NativeVecEnv, checked_count
from heterps_envs.environments.stage.episodes import StageEpisodes
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.registration import PRICED_STAGE_PLACEMENT, STAGE_PLACEMENT


class StagePlacementVecEnv(NativeVecEnv):
    """The native batched form of `heterps/StagePlacement`: same observations, actions, rewards.

    Args:
        pool: Problems to draw from. Its room for device classes fixes the spaces.
        num_envs: Episodes at once.
        seed: Of the draws.
        render_mode: See `NativeVecEnv`.
        with_prices: Be `heterps/PricedStagePlacement-v0`; its pool is a
            `heterps_envs.environments.stage.priced_pool.PricedPool`.
    """

    episodes: StageEpisodes
    pool: ProblemPool

    def __init__(
        self,
        pool: ProblemPool,
        num_envs: int = 256,
        seed: int = 0,
        render_mode: str | None = None,
        with_prices: bool = False,
    ) -> None:
        env_id = PRICED_STAGE_PLACEMENT if with_prices else STAGE_PLACEMENT
        episodes = StageEpisodes(pool, checked_count(num_envs), with_prices)
        super().__init__(env_id, episodes, seed, render_mode)
