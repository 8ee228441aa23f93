"""Hundreds of graph placement episodes in one call, as a `VecEnv` of stable-baselines3 (torch).

Nothing imports this module at import time; training does when it starts.
"""

from __future__ import annotations

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from heterps_envs.environments.base.drawing import Image
from heterps_envs.environments.base.vector_env import Actions, Ended, NativeVecEnv, Observations
from heterps_envs.environments.graph.episodes import GraphEpisodes, graph_observation_size
from heterps_envs.environments.graph.pictures import draw_graphs
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.environments.graph.state import COMPLETE, LARGEST_GRAPH_RATIO


class GraphPlacementVecEnv(NativeVecEnv):
    """The native batched form of `heterps/GraphPlacement-v0`: same observations, actions, rewards.

    The `info` of a finished episode holds `problem`, and `step_time_s` and `devices` of a complete
    placement. Policies that pass messages read `episodes.rows.problem`, `episodes.view.node` and
    the graphs in `pool` (`pool.guides.node_features`, `pool.producer_edges`).

    Args:
        pool: Problems to draw from. Its room for devices fixes the spaces.
        num_envs: Episodes at once.
        seed: Of the draws.
        render_mode: "rgb_array" lets `render` and `get_images` draw, some tens of milliseconds for
            each episode.
    """

    def __init__(
        self,
        pool: GraphPool,
        num_envs: int = 256,
        seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        self.episodes = GraphEpisodes(pool, num_envs)
        self.pool = pool
        devices = self.episodes.max_devices
        super().__init__(
            num_envs,
            gym.spaces.Box(
                -LARGEST_GRAPH_RATIO,
                LARGEST_GRAPH_RATIO,
                (graph_observation_size(devices),),
                np.float32,
            ),
            gym.spaces.Discrete(devices),
            seed,
            render_mode,
        )

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, devices) where the next node may go."""
        return self.episodes.view.allowed.copy()

    def _begin_rows(self, which: NDArray[np.int64]) -> None:
        self.episodes.begin(which, self.pool.draw(self._rng, len(which)))

    def _step_rows(self, actions: Actions) -> NDArray[np.int64]:
        return self.episodes.step(actions)

    def _end_rows(self, ended: NDArray[np.int64]) -> Ended:
        return Ended(
            self.pool.rewards(self.episodes.rows, ended),
            self.episodes.last_observations(ended),
            self.episodes.rows.status[ended] == COMPLETE,
            [self.episodes.describe(row) for row in ended],
        )

    def _observations(self) -> Observations:
        return self.episodes.observations()

    def _image(self, row: int) -> Image:
        return draw_graphs(self.episodes, row)
