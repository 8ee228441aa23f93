"""Hundreds of layer placement episodes in one call, as a `VecEnv` of stable-baselines3 (torch).

Nothing imports this module at import time; training does when it starts.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from heterps_envs.environments.base.drawing import Image
from heterps_envs.environments.base.vector_env import Actions, Ended, NativeVecEnv, Observations
from heterps_envs.environments.layer.episodes import LayerEpisodes, layer_observation_size
from heterps_envs.environments.layer.pictures import draw_layers
from heterps_envs.environments.layer.pool import LayerPool
from heterps_envs.environments.stage.state import LARGEST_RATIO


class LayerPlacementVecEnv(NativeVecEnv):
    """The native batched form of `heterps/LayerPlacement-v0`: same observations, actions, rewards.

    The `info` of a finished episode holds what the single environment's does: `verdict`, and
    `step_time_s`, `price_usd_per_hour`, `code` and `problem` of a placement of all layers.

    Args:
        pool: Problems to draw from. Its room for device classes fixes the spaces.
        num_envs: Episodes at once.
        seed: Of the draws.
        render_mode: "rgb_array" lets `render` and `get_images` draw, some tens of milliseconds for
            each episode.
    """

    def __init__(
        self,
        pool: LayerPool,
        num_envs: int = 256,
        seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        self.episodes = LayerEpisodes(pool, num_envs)
        self.pool = pool
        super().__init__(
            num_envs,
            gym.spaces.Box(
                -LARGEST_RATIO,
                LARGEST_RATIO,
                (layer_observation_size(pool.num_actions),),
                np.float32,
            ),
            gym.spaces.Discrete(pool.num_actions),
            seed,
            render_mode,
        )

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, actions) which actions are allowed now."""
        return self.episodes.view.allowed.copy()

    def _begin_rows(self, which: NDArray[np.int64]) -> None:
        self.episodes.begin(which, *self.pool.draw(self._rng, len(which)))

    def _step_rows(self, actions: Actions) -> NDArray[np.int64]:
        return self.episodes.step(actions)

    def _end_rows(self, ended: NDArray[np.int64]) -> Ended:
        return Ended(
            self.pool.rewards(self.episodes.rows, ended),
            self.episodes.last_observations(ended),
            self.episodes.has_fitted(ended),
            [self.episodes.describe(row) for row in ended],
        )

    def _observations(self) -> Observations:
        return self.episodes.observations()

    def _image(self, row: int) -> Image:
        return draw_layers(self.episodes, row)
