"""Episodes, many at once: what a single environment and its native vector form both run."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Flags, Floats, Integers
from heterps_envs.environments.base.drawing import Image
from heterps_envs.environments.base.state import COMPLETE, RUNNING, STUCK


class Pool(ABC):
    """Packed problems, from which episodes draw.

    Attributes:
        problems: N problems, `problems.num_problems` of them.
    """

    problems: Any

    def draw(self, rng: np.random.Generator, count: int) -> tuple[Integers, Any]:
        """Rows of problems at random, and the limits of an episode for each."""
        rows = rng.integers(0, self.problems.num_problems, count)
        return rows, self.draw_limits(rng, rows)

    @abstractmethod
    def draw_limits(self, rng: np.random.Generator, rows: Integers) -> Any:
        """What episodes on these problems must keep: a NamedTuple of (K,) arrays."""

    @abstractmethod
    def rewards(self, rows: Any, which: Integers) -> Floats:
        """Rewards of finished episodes: (K,)."""


class Episodes(ABC):
    """`count` episodes on problems of a pool. Rows are independent of each other.

    A subclass says how episodes begin, advance and are seen, and what they tell.

    Args:
        pool: Problems, limits and rewards.
        rows: The states, a NamedTuple of arrays with `count` rows; `problem` and `status` are
            among them.
        view: What is to be seen: `candidates` (count, A, F), `state` (count, G), `allowed`
            (count, A).
    """

    pool: Any
    rows: Any
    view: Any

    def __init__(self, pool: Pool, rows: Any, view: Any) -> None:
        self.pool, self.rows, self.view = pool, rows, view
        self.count, self.num_actions = view.allowed.shape
        self._everyone = np.arange(self.count)

    @abstractmethod
    def begin(self, which: Integers, problem: Integers, limits: Any) -> None:
        """Starts episodes on problems, with limits as the pool draws them."""

    @abstractmethod
    def _advance(self, actions: Integers) -> None:
        """Takes one allowed action in every running episode."""

    @abstractmethod
    def _observe(self, which: Integers) -> None:
        """Writes what episodes see; a running one that sees no action becomes STUCK."""

    @abstractmethod
    def describe(self, row: int) -> dict[str, Any]:
        """What `info` holds: the problem, its limits and, of an ended episode, the placement."""

    @abstractmethod
    def image(self, row: int) -> Image:
        """A picture of one episode."""

    def results(self, ended: Integers) -> Sequence[Mapping[str, Any]]:
        """What the `info` of the native environment tells of ended episodes."""
        return [self.describe(row) for row in ended]

    def step(self, actions: Integers) -> Integers:
        """One step of all episodes; returns the rows that have ended."""
        running = self._everyone[self.rows.status == RUNNING]
        self._advance(actions)
        self._observe(running)
        return np.flatnonzero(self.rows.status != RUNNING)

    def close(self, which: Integers) -> None:
        """Ends running episodes as stuck: nothing may follow."""
        self.rows.status[which[self.rows.status[which] == RUNNING]] = STUCK
        self.view.allowed[which] = False
        self.view.candidates[which] = 0.0

    def finish(self, ended: Integers) -> Floats:
        """Rewards of episodes that have just ended: (K,)."""
        return np.asarray(self.pool.rewards(self.rows, ended))

    def is_complete(self, which: Integers) -> Flags:
        """(K,) which placements can be used."""
        return np.asarray(self.rows.status[which] == COMPLETE)

    @property
    def observation_size(self) -> int:
        """Numbers in one observation: the features of all candidates, then those of the state."""
        return int(self.view.candidates[0].size + self.view.state.shape[1])

    def observations(self) -> NDArray[np.float32]:
        """(count, observation_size) a new array, within plus or minus LARGEST_RATIO."""
        flat = self.view.candidates.reshape(self.count, -1)
        return np.concatenate([flat, self.view.state], axis=1)

    def last_observations(self, ended: Integers) -> NDArray[np.float32]:
        """(K, observation_size) of ended episodes: no candidates, only the state."""
        state = self.view.state[ended]
        out = np.zeros((len(ended), self.observation_size), np.float32)
        out[:, -state.shape[1] :] = state
        return out

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of all rows by name."""
        return {f"rows.{name}": value.copy() for name, value in self.rows._asdict().items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over rows, and sees again what they saw."""
        for name, value in self.rows._asdict().items():
            value[:] = state[f"rows.{name}"]
        self._observe(self._everyone)
