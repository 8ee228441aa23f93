"""Hundreds of layer placement episodes in one call, as a `VecEnv` of stable-baselines3 (torch).

Nothing imports this module at import time; training does when it starts.
"""

from __future__ import annotations

from heterps_envs.environments.base.vector_env import NativeVecEnv, checked_count
from heterps_envs.environments.layer.episodes import LayerEpisodes
from heterps_envs.environments.layer.pool import LayerPool
from heterps_envs.registration import LAYER_PLACEMENT


class LayerPlacementVecEnv(NativeVecEnv):
    """The native batched form of `heterps/LayerPlacement-v0`: same observations, actions, rewards.

    The `info` of a finished episode holds what the single environment's does: `verdict`, and
    `step_time_s`, `price_usd_per_hour`, `code` and `problem` of a placement of all layers.

    Args:
        pool: Problems to draw from. Its room for device classes fixes the spaces.
        num_envs: Episodes at once.
        seed: Of the draws.
        render_mode: See `NativeVecEnv`.
    """

    episodes: LayerEpisodes
    pool: LayerPool

    def __init__(
        self,
        pool: LayerPool,
        num_envs: int = 256,
        seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        episodes = LayerEpisodes(pool, checked_count(num_envs))
        super().__init__(LAYER_PLACEMENT, episodes, seed, render_mode)
