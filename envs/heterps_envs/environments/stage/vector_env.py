"""Hundreds of stage placement episodes in one call, as a `VecEnv` of stable-baselines3 (torch).

Nothing imports this module at import time; training does when it starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from heterps_envs.environments.base.drawing import Image
from heterps_envs.environments.base.vector_env import Actions, Ended, NativeVecEnv, Observations
from heterps_envs.environments.stage.episodes import (
    LARGEST_OBSERVATION,
    StageEpisodes,
    observation_size,
)
from heterps_envs.environments.stage.pictures import draw_stages
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.state import COMPLETE, num_actions


class StagePlacementVecEnv(NativeVecEnv):
    """The native batched form of `heterps/StagePlacement`: same observations, actions, rewards.

    Args:
        pool: Problems to draw from. Its room for device classes fixes the spaces.
        num_envs: Episodes at once.
        seed: Of the draws.
        render_mode: "rgb_array" lets `render` and `get_images` draw, some tens of milliseconds for
            each episode.
        with_prices: Be `heterps/PricedStagePlacement-v0`; its pool is a
            `heterps_envs.environments.stage.priced_pool.PricedPool`.
    """

    def __init__(
        self,
        pool: ProblemPool,
        num_envs: int = 256,
        seed: int = 0,
        render_mode: str | None = None,
        with_prices: bool = False,
    ) -> None:
        self.episodes = StageEpisodes(pool, num_envs, with_prices)
        self.pool = pool
        classes = self.episodes.max_classes
        super().__init__(
            num_envs,
            gym.spaces.Box(
                -LARGEST_OBSERVATION,
                LARGEST_OBSERVATION,
                (observation_size(classes, with_prices),),
                np.float32,
            ),
            gym.spaces.Discrete(num_actions(classes)),
            seed,
            render_mode,
        )

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, actions) which actions are allowed now."""
        return self.episodes.view.allowed.copy()

    def state(self) -> dict[str, NDArray[Any] | str]:
        """Episodes under way, pool and draws to come, see `NativeVecEnv.state`."""
        return {**super().state(), **self.episodes.state(), **self.pool.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over a state, see `NativeVecEnv.restore`."""
        super().restore(state)
        self.pool.restore(state)
        self.episodes.restore(state)

    def _begin_rows(self, which: NDArray[np.int64]) -> None:
        problem, limits = self.pool.draw(self._rng, len(which))
        self.episodes.begin(which, problem, limits)

    def _step_rows(self, actions: Actions) -> NDArray[np.int64]:
        return self.episodes.step(actions)

    def _end_rows(self, ended: NDArray[np.int64]) -> Ended:
        rows = self.episodes.rows
        rewards, is_complete = self.pool.rewards(rows, ended), rows.status[ended] == COMPLETE
        self.pool.improve(rows, ended, rewards)
        return Ended(rewards, self.episodes.last_observations(ended), is_complete)

    def _observations(self) -> Observations:
        return self.episodes.observations()

    def _image(self, row: int) -> Image:
        return draw_stages(self.episodes, row)
