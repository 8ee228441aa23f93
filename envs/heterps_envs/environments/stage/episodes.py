"""Episodes of stage placement, many at once: what both environments share."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats, Integers
from heterps_envs.environments.stage.kernels import advance, observe
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.state import (
    LARGEST_RATIO,
    RUNNING,
    STUCK,
    Limits,
    empty_rows,
    empty_view,
    feature_sizes,
    num_actions,
    start_rows,
)

LARGEST_OBSERVATION = LARGEST_RATIO
# Limits are raised by 5 % each time: a hundred million times in all.
_MOST_RAISES = 400


def observation_size(max_classes: int, with_prices: bool = False) -> int:
    """Numbers in one observation: the features of all candidates, then those of the state."""
    candidate, state = feature_sizes(with_prices)
    return num_actions(max_classes) * candidate + state


class StageEpisodes:
    """`count` episodes on problems of a pool. Rows are independent of each other.

    Args:
        pool: Problems, limits and rewards.
        count: Episodes.
        with_prices: Whether observations have the features of prices.
    """

    def __init__(self, pool: ProblemPool, count: int, with_prices: bool = False) -> None:
        problems = pool.problems
        self.pool, self.count = pool, count
        self.max_classes = problems.class_price.shape[1]
        self.rows = empty_rows(count, problems.output_bytes.shape[1], self.max_classes)
        self.view = empty_view(count, self.max_classes, with_prices=with_prices)
        self._everyone = np.arange(count)

    def begin(self, which: Integers, problem: Integers, limits: Limits) -> None:
        """Starts episodes. Limits that let no stage begin are raised until one may.

        Raises:
            HeterpsError: A problem has no placement, whatever the limits.
        """
        pending = which
        start_rows(self.pool.problems, self.rows, which, problem, *limits)
        for _ in range(_MOST_RAISES):
            observe(self.pool.problems, self.rows, self.view, pending)
            pending = pending[self.rows.status[pending] == STUCK]
            if not len(pending):
                return
            self.rows.target_s[pending] *= 1.05
            limit_s = np.maximum(self.rows.fill_limit_s[pending], self._least_fill_s(pending))
            self.rows.fill_limit_s[pending] = 1.05 * limit_s
            self.rows.price_limit_usd_per_hour[pending] *= 1.05
            self.rows.status[pending] = RUNNING
        raise HeterpsError(f"problem {self.rows.problem[pending[0]]} of the pool has no placement")

    def _least_fill_s(self, which: Integers) -> Floats:
        problems, problem = self.pool.problems, self.rows.problem[which]
        return np.asarray(problems.fastest_prefix_s[problem, problems.num_layers[problem]])

    def step(self, actions: Integers) -> Integers:
        """Appends a stage in every episode; returns the rows that finished by it."""
        running = self._everyone[self.rows.status == RUNNING]
        advance(self.pool.problems, self.rows, self.view, actions)
        observe(self.pool.problems, self.rows, self.view, running)
        finished = running[self.rows.status[running] != RUNNING]
        return np.asarray(finished)

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of all rows by name."""
        return {f"rows.{name}": value.copy() for name, value in self.rows._asdict().items()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over rows, and sees again what they saw; the pool must have its state already."""
        for name, value in self.rows._asdict().items():
            value[:] = state[f"rows.{name}"]
        observe(self.pool.problems, self.rows, self.view, self._everyone)

    def close(self, which: Integers) -> None:
        """Takes all candidates away: nothing may follow."""
        self.view.allowed[which] = False
        self.view.candidates[which] = 0.0

    def observations(self) -> NDArray[np.float32]:
        """(count, observation_size) float32, within plus or minus LARGEST_OBSERVATION."""
        flat = self.view.candidates.reshape(self.count, -1)
        return np.concatenate([flat, self.view.state], axis=1)

    def last_observations(self, finished: Integers) -> NDArray[np.float32]:
        """(K, observation_size) of finished episodes: no candidates, only the state."""
        candidates = self.view.candidates[0].size
        state = self.view.state[finished]
        observations = np.zeros((len(finished), candidates + state.shape[1]), np.float32)
        observations[:, candidates:] = state
        return observations
