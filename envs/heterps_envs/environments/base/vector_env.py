"""What the native `VecEnv`s share: hundreds of episodes in one call, for stable-baselines3 (torch).

Nothing imports this module at import time; training does when it starts.
"""

from __future__ import annotations

import json
from abc import abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from heterps_envs.environments.base.drawing import Image, check_render_mode

Indices = None | int | Iterable[int]
Actions = NDArray[np.int64]
Observations = NDArray[np.float32]


class Ended(NamedTuple):
    """The ends of K episodes.

    Attributes:
        rewards: (K,) of their last steps.
        observations: (K, size) what was there to see after them.
        is_success: (K,) whether everything was placed.
        details: Further entries for `info`, one mapping for each; or none at all.
    """

    rewards: NDArray[np.float64]
    observations: Observations
    is_success: NDArray[np.bool_]
    details: Sequence[Mapping[str, Any]] = ()


class NativeVecEnv(VecEnv):
    """Episodes that compiled kernels advance all at once. The reward comes with the last step.

    A subclass keeps the rows and says how they begin, advance and end.

    Args:
        num_envs: Episodes at once.
        observation_space: Of one episode.
        action_space: Of one episode.
        seed: Of the draws, until `seed()` is called.
        render_mode: "rgb_array" lets `render` and `get_images` draw; None does not.

    Raises:
        HeterpsError: The render mode is another one.
    """

    def __init__(
        self,
        num_envs: int,
        observation_space: gym.Space[Any],
        action_space: gym.Space[Any],
        seed: int = 0,
        render_mode: str | None = None,
    ) -> None:
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self._rng = np.random.default_rng(seed)
        self._actions = np.zeros(num_envs, np.int64)
        self._length, self._everyone = np.zeros(num_envs, np.int64), np.arange(num_envs)
        super().__init__(num_envs, observation_space, action_space)

    @abstractmethod
    def action_masks(self) -> NDArray[np.bool_]:
        """(num_envs, actions) which actions are allowed now."""

    @abstractmethod
    def _begin_rows(self, which: NDArray[np.int64]) -> None:
        """Begins the episodes `which` anew, with draws from `self._rng`."""

    @abstractmethod
    def _step_rows(self, actions: Actions) -> NDArray[np.int64]:
        """One step of all episodes; returns the rows that ended by it."""

    @abstractmethod
    def _end_rows(self, ended: NDArray[np.int64]) -> Ended:
        """What is to be told about rows that have ended, before they begin anew."""

    @abstractmethod
    def _observations(self) -> Observations:
        """(num_envs, size) a new array."""

    def _image(self, row: int) -> Image:
        """A picture of one episode, if the environment can draw."""
        raise NotImplementedError

    def reset(self) -> Observations:
        """Begins all episodes anew; returns (num_envs, size).

        After `seed()` their draws begin anew as well.
        """
        if self._seeds[0] is not None:
            self._rng = np.random.default_rng(self._seeds[0])
        self._reset_seeds()
        self._begin(self._everyone)
        return self._observations()

    def step_async(self, actions: Actions) -> None:
        """Takes the actions of the next `step_wait`."""
        self._actions = np.asarray(actions, np.int64)

    def step_wait(
        self,
    ) -> tuple[Observations, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """One step in every episode; finished ones begin anew, their end is in their info."""
        ended = self._step_rows(self._actions)
        self._length += 1
        rewards, dones = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.bool_)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if len(ended):
            end = self._end_rows(ended)
            rewards[ended], dones[ended] = end.rewards, True
            self._describe(ended, end, rewards[ended], infos)
            self._begin(ended)
        return self._observations(), rewards, dones, infos

    def _begin(self, which: NDArray[np.int64]) -> None:
        self._length[which] = 0
        self._begin_rows(which)

    def _describe(
        self,
        ended: NDArray[np.int64],
        end: Ended,
        rewards: NDArray[np.float32],
        infos: list[dict[str, Any]],
    ) -> None:
        described = zip(
            ended.tolist(),
            rewards.tolist(),
            self._length[ended].tolist(),
            end.is_success.tolist(),
            end.observations,
            strict=True,
        )
        for row, reward, length, success, observation in described:
            infos[row] = {
                "episode": {"r": reward, "l": length, "t": 0.0},
                "terminal_observation": observation,
                "is_success": success,
            }
        for row, more in zip(ended.tolist(), end.details, strict=False):
            infos[row].update(more)

    def state(self) -> dict[str, NDArray[Any] | str]:
        """What `restore` needs to go on as if nothing had happened; a subclass adds its rows."""
        draws = json.dumps(self._rng.bit_generator.state)
        return {"draws": draws, "episode_length": self._length.copy()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over a state of an environment that was made with the same arguments."""
        self._rng.bit_generator.state = json.loads(state["draws"])
        self._length[:] = state["episode_length"]

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
        """Calls a method that gives one row for each environment, as `action_masks` does."""
        result = getattr(self, method_name)(*method_args, **method_kwargs)
        return [result[index] for index in self._get_indices(indices)]

    def env_is_wrapped(
        self, wrapper_class: type[gym.Wrapper[Any, Any, Any, Any]], indices: Indices = None
    ) -> list[bool]:
        """No wrappers inside."""
        return [False for _ in self._get_indices(indices)]

    def get_images(self) -> Sequence[Image | None]:
        """One picture for each environment; None without a render mode."""
        if self.render_mode is None:
            return [None] * self.num_envs
        return [self._image(row) for row in range(self.num_envs)]
