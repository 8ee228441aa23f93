"""What the single environments share: one episode at a time, for Gymnasium."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import gymnasium as gym
import numpy as np
from numpy.typing import NDArray

from heterps_configs.arguments import check_number, check_type, check_whole
from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_envs.arrays import Flags
from heterps_envs.environments.base.drawing import Image, check_render_mode
from heterps_envs.environments.base.episodes import Episodes
from heterps_envs.environments.base.state import LARGEST_RATIO

Observation = NDArray[np.float32]
_ONLY = np.array([0])


def spaces_of(episodes: Episodes) -> tuple[gym.Space[Any], gym.spaces.Discrete]:
    """Observations and actions of one episode."""
    size = episodes.observation_size
    box = gym.spaces.Box(-LARGEST_RATIO, LARGEST_RATIO, (size,), np.float32)
    return box, gym.spaces.Discrete(episodes.num_actions)


def _check_options(options: object, limits: tuple[str, ...], last: int) -> None:
    """Refuses what `reset` would misread, or not read at all.

    Args:
        options: What was passed.
        limits: Names of what episodes must keep.
        last: Row of the last problem.
    """
    known = "problem", *limits
    check_type("options", options, Mapping, f"a mapping of {', '.join(known)}")
    assert isinstance(options, Mapping)
    for name, value in options.items():
        if name not in known:
            raise UnknownNameError("option of reset", str(name), known)
        if name == "problem":
            check_whole(name, value, f"a whole number from 0 to {last}")
            if not 0 <= value <= last:
                raise HeterpsError(f"there is no problem {value}; allowed: 0 to {last}")
            continue
        check_number(name, value, "a number above 0")
        if not value > 0:
            raise HeterpsError(f"{name}: is {value}; allowed: a number above 0")


class PlacementEnv(gym.Env[Observation, np.int64]):
    """One episode, with the reward at its end.

    Args:
        episodes: Of one row.
        render_mode: "rgb_array" lets `render` draw; None does not.

    Raises:
        HeterpsError: The render mode is another one.
    """

    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012 (Gymnasium's own declaration)

    def __init__(self, episodes: Episodes, render_mode: str | None) -> None:
        check_render_mode(render_mode)
        self.render_mode = render_mode
        self._episodes = episodes
        self.observation_space, self.action_space = spaces_of(episodes)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Observation, dict[str, Any]]:
        """Begins an episode.

        Args:
            seed: Of the random choices from here on.
            options: `problem` (row) and the limits that the pool draws, all optional.

        Raises:
            HeterpsError: There is no such problem or option, or a limit is none.
        """
        super().reset(seed=seed)
        pool, options = self._episodes.pool, options or {}
        problem, limits = pool.draw(self.np_random, 1)
        _check_options(options, limits._fields, pool.problems.num_problems - 1)
        if "problem" in options:
            problem[0] = options["problem"]
            limits = pool.draw_limits(self.np_random, problem)
        for name, limit in limits._asdict().items():
            limit[0] = options.get(name, limit[0])
        self._episodes.begin(_ONLY, problem, limits)
        return self._episodes.observations()[0], self._info()

    def step(self, action: np.int64 | int) -> tuple[Observation, float, bool, bool, dict[str, Any]]:
        """Takes an action; one that is not allowed ends the episode as stuck.

        Raises:
            HeterpsError: It is not of the action space.
        """
        if not self.action_space.contains(action):
            most = self._episodes.num_actions - 1
            raise HeterpsError(f"action: is {action!r}; allowed: a whole number from 0 to {most}")
        episodes, has_ended = self._episodes, True
        if episodes.view.allowed[0, action]:
            has_ended = len(episodes.step(np.array([action]))) > 0
        else:
            episodes.close(_ONLY)
        reward = float(episodes.finish(_ONLY)[0]) if has_ended else 0.0
        return episodes.observations()[0], reward, has_ended, False, self._info()

    def action_masks(self) -> Flags:
        """(actions,) which actions are allowed now."""
        return np.array(self._episodes.view.allowed[0])

    def render(self) -> Image | None:
        """The placement so far as (height, width, 3) uint8; None without a render mode."""
        return None if self.render_mode is None else self._episodes.image(0)

    def _info(self) -> dict[str, Any]:
        return {"action_mask": self.action_masks(), **self._episodes.describe(0)}
