"""What the native `VecEnv`s share: hundreds of episodes in one call, for stable-baselines3 (torch).

Nothing imports this module at import time; training does when it starts.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray
from stable_baselines3.common.vec_env import VecEnv

from heterps_configs.arguments import check_seed, check_whole
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Flags, Integers
from heterps_envs.environments.base.drawing import Image, check_render_mode
from heterps_envs.environments.base.env import Observation, spaces_of
from heterps_envs.environments.base.episodes import Episodes

# An episode takes up to 32 kB.
MOST_ENVIRONMENTS = 2**16
Indices = None | int | Iterable[int]


def checked_count(num_envs: int) -> int:
    """How many episodes there are at once.

    Raises:
        HeterpsError: It is no whole number, or they would not fit into memory.
    """
    allowed = f"a whole number from 1 to {MOST_ENVIRONMENTS}"
    check_whole("num_envs", num_envs, allowed)
    if not 1 <= num_envs <= MOST_ENVIRONMENTS:
        raise HeterpsError(f"num_envs: is {num_envs}; allowed: {allowed}")
    return num_envs


def _described(actions: NDArray[Any]) -> str:
    """Type, shape and range of what was passed."""
    text = f"{actions.dtype} of shape {actions.shape}"
    if actions.size and actions.dtype.kind in "iuf":
        text += f" from {actions.min():g} to {actions.max():g}"
    return text


class NativeVecEnv(VecEnv):
    """Episodes that compiled kernels advance all at once. The reward comes with the last step.

    Args:
        env_id: Of the single environment with the same observations, actions and rewards.
        episodes: One row for each environment.
        seed: Of the draws, until `seed()` is called.
        render_mode: "rgb_array" lets `render` and `get_images` draw, some tens of milliseconds for
            each episode; None does not.

    Raises:
        HeterpsError: The render mode is another one, or the seed is none.

    Attributes:
        spec: Of that environment on the same pool: `gymnasium.make(spec)` makes one of the rows.
    """

    episodes: Episodes
    pool: Any

    def __init__(
        self, env_id: str, episodes: Episodes, seed: int = 0, render_mode: str | None = None
    ) -> None:
        check_render_mode(render_mode)
        check_seed(seed)
        self.spec = replace(gym.spec(env_id), kwargs={"pool": episodes.pool})
        self.render_mode = render_mode
        self.episodes, self.pool = episodes, episodes.pool
        self._rng = np.random.default_rng(seed)
        self._actions = np.zeros(episodes.count, np.int64)
        self._length, self._everyone = np.zeros_like(self._actions), np.arange(episodes.count)
        super().__init__(episodes.count, *spaces_of(episodes))

    def action_masks(self) -> Flags:
        """(num_envs, actions) which actions are allowed now."""
        return np.array(self.episodes.view.allowed)

    def reset(self) -> Observation:
        """Begins all episodes anew; returns (num_envs, size).

        After `seed()` their draws begin anew as well.
        """
        if self._seeds[0] is not None:
            self._rng = np.random.default_rng(self._seeds[0])
        self._reset_seeds()
        self._begin(self._everyone)
        return self.episodes.observations()

    def step_async(self, actions: Integers) -> None:
        """Takes the actions of the next `step_wait`.

        Raises:
            HeterpsError: They are not one for each episode, all of the action space: compiled code
                would read and write beyond its arrays.
        """
        taken, most = np.asarray(actions), self.episodes.num_actions - 1
        is_one_each = taken.shape == self._actions.shape and taken.dtype.kind in "iu"
        if not is_one_each or taken.min() < 0 or taken.max() > most:
            raise HeterpsError(
                f"actions: are {_described(taken)}; allowed: {self.num_envs} whole numbers, one "
                f"for each episode, from 0 to {most}"
            )
        self._actions = taken.astype(np.int64)

    def step_wait(
        self,
    ) -> tuple[Observation, NDArray[np.float32], NDArray[np.bool_], list[dict[str, Any]]]:
        """One step in every episode; finished ones begin anew, their end is in their info.

        An action that is not allowed ends its episode as stuck.
        """
        is_allowed = self.episodes.view.allowed[self._everyone, self._actions]
        if not is_allowed.all():
            self.episodes.close(self._everyone[~is_allowed])
        ended = self.episodes.step(self._actions)
        self._length += 1
        rewards, dones = np.zeros(self.num_envs, np.float32), np.zeros(self.num_envs, np.bool_)
        infos: list[dict[str, Any]] = [{} for _ in range(self.num_envs)]
        if len(ended):
            rewards[ended], dones[ended] = self.episodes.finish(ended), True
            self._describe(ended, rewards[ended], infos)
            self._begin(ended)
        return self.episodes.observations(), rewards, dones, infos

    def _begin(self, which: Integers) -> None:
        self._length[which] = 0
        self.episodes.begin(which, *self.pool.draw(self._rng, len(which)))

    def _describe(
        self, ended: Integers, rewards: NDArray[np.float32], infos: list[dict[str, Any]]
    ) -> None:
        described = zip(
            ended.tolist(),
            rewards.tolist(),
            self._length[ended].tolist(),
            self.episodes.is_complete(ended).tolist(),
            self.episodes.last_observations(ended),
            self.episodes.results(ended),
            strict=True,
        )
        for row, reward, length, success, observation, more in described:
            infos[row] = {
                "episode": {"r": reward, "l": length, "t": 0.0},
                "terminal_observation": observation,
                "is_success": success,
                **more,
            }

    def state(self) -> dict[str, NDArray[Any] | str]:
        """What `restore` needs to go on as if nothing had happened."""
        draws = json.dumps(self._rng.bit_generator.state)
        return {
            "draws": draws, "episode_length": self._length.copy(), **self.episodes.state(),
        }  # fmt: skip

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over a state of an environment that was made with the same arguments."""
        self._rng.bit_generator.state = json.loads(state["draws"])
        self._length[:] = state["episode_length"]
        self.episodes.restore(state)

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
        return [self.episodes.image(row) for row in range(self.num_envs)]
