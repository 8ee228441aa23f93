"""Hundreds of stage placement episodes in one call, as a `VecEnv` of stable-baselines3 (torch).

Nothing imports this module at import time; training does when it starts.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from heterps_envs.problem_pool import ProblemPool
from heterps_envs.stage_episodes import (
    LARGEST_OBSERVATION,
    StageEpisodes,
    observation_size,
)
from heterps_envs.stage_state import (
    COMPLETE,
    num_actions,
)

Indices = None | int | Iterable[int]


class StagePlacementVecEnv(VecEnv):
    """The native batched form of `heterps/StagePlacement-v0`: same observations, actions, rewards.

    Args:
        pool: Problems to draw from. Its room for device classes fixes the spaces.
        num_envs: Episodes at once.
        seed: Of the draws.
    """

    def __init__(self, pool: ProblemPool, num_envs: int = 256, seed: int = 0) -> None:
        self.episodes = StageEpisodes(pool, num_envs)
        self.pool = pool
        self.render_mode = None
        self._rng = np.random.default_rng(seed)
        self._actions = np.zeros(num_envs, np.int64)
        self._length, self._everyone = np.zeros(num_envs, np.int64), np.arange(num_envs)
        classes = self.episodes.max_classes
        super().__init__(
            num_envs,
            gym.spaces.Box(
                -LARGEST_OBSERVATION, LARGEST_OBSERVATION, (observation_size(classes),), np.float32
            ),
            gym.spaces.Discrete(num_actions(classes)),
        )

    def reset(self) -> NDArray[np.float32]:
        """Begins all episodes anew; returns (num_envs, observation_size)."""
        self._begin(self._everyone)
        return self.episodes.observations()

    def step_async(self, actions: NDArray[np.int64]) -> None:
        """Takes the actions of the next `step_wait`."""
        self._actions = np.asarray(actions, np.int64)

    def step_wait(
        self,
    ) -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """One stage in every episode; finished ones begin anew, their end is in their info."""
        finished = self.episodes.step(self._actions)
        self._length += 1
        rewards, dones = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.bool_)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if len(finished):
            rewards[finished] = self.pool.rewards(self.episodes.rows, finished)
            dones[finished] = True
            self._describe(finished, rewards, infos)
            self.pool.improve(self.episodes.rows, finished)
            self._begin(finished)
        return self.episodes.observations(), rewards, dones, infos

    def _begin(self, which: NDArray[np.int64]) -> None:
        self._length[which] = 0
        self.episodes.begin(which, *self.pool.draw(self._rng, len(which)))

    def _describe(
        self,
        finished: NDArray[np.int64],
        rewards: NDArray[np.float32],
        infos: list[dict[str, Any]],
    ) -> None:
        last = self.episodes.last_observations(finished)
        complete = self.episodes.rows.status[finished] == COMPLETE
        described = zip(
            finished.tolist(),
            rewards[finished].tolist(),
            self._length[finished].tolist(),
            complete.tolist(),
            last,
            strict=True,
        )
        for row, reward, length, success, observation in described:
            infos[row] = {
                "episode": {"r": reward, "l": length, "t": 0.0},
                "terminal_observation": observation,
                "is_success": success,
            }

    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, actions) which actions are allowed now."""
        return self.episodes.view.allowed.copy()

    def close(self) -> None:
        """Nothing is held."""

    def has_attr(self, attr_name: str) -> bool:
        """Whether the environments have an attribute."""
        return hasattr(self, attr_name)

    def get_attr(self, attr_name: str, indices: Indices = None) -> list[Any]:
        """The attribute once for each environment."""
        return [getattr(self, attr_name) for _ in self._get_indices(indices)]

    def set_attr(self, attr_name: str, value: Any, indices: Indices = None) -> None:
        """Sets an attribute of all environments."""
        setattr(self, attr_name, value)

    def env_method(
        self, method_name: str, *method_args: Any, indices: Indices = None, **method_kwargs: Any
    ) -> list[Any]:
        """Calls a method; only `action_masks` exists, and gives one row for each environment."""
        result = getattr(self, method_name)(*method_args, **method_kwargs)
        return [result[index] for index in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """No wrappers inside."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[NDArray[np.uint8] | None]:
        """Nothing is drawn."""
        return [None] * self.num_envs
