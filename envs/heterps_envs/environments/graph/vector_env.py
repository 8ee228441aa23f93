"""Hundreds of graph placement episodes in one call, as a `VecEnv` of stable-baselines3 (torch).

Nothing imports this module at import time; training does when it starts.
"""

from __future__ import annotations

from heterps_envs.environments.base.vector_env import NativeVecEnv, checked_count
from heterps_envs.environments.graph.episodes import GraphEpisodes
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.registration import GRAPH_PLACEMENT


class GraphPlacementVecEnv(NativeVecEnv):
    """The native batched form of `heterps/GraphPlacement-v0`: same observations, actions, rewards.

    The `info` of a finished episode holds `problem`, and `step_time_s` and `devices` of a complete
    placement. Policies that pass messages read `episodes.rows.problem`, `episodes.view.node` and
    the graphs in `pool` (`pool.guides.node_features`, `pool.producer_edges`).

    Args:
        pool: Problems to draw from. Its room for devices fixes the spaces.
        num_envs: Episodes at once.
        seed: Of the draws.
        render_mode: See `NativeVecEnv`.
    """

    episodes: GraphEpisodes
    pool: GraphPool

    def __init__(
        self,
        pool: GraphPool,
        num_envs: int = 256,
        seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        episodes = GraphEpisodes(pool, checked_count(num_envs))
        super().__init__(GRAPH_PLACEMENT, episodes, seed, render_mode)
