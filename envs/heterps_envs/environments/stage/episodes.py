"""Episodes of stage placement, many at once: what both environments share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats, Integers
from heterps_envs.environments.base.drawing import Image
from heterps_envs.environments.base.episodes import Episodes
from heterps_envs.environments.base.state import COMPLETE, RUNNING, STUCK
from heterps_envs.environments.stage.kernels import advance, observe
from heterps_envs.environments.stage.pictures import draw_stages
from heterps_envs.environments.stage.pool import ProblemPool
from heterps_envs.environments.stage.state import (
    Limits,
    StageRows,
    StageView,
    empty_rows,
    empty_view,
    start_rows,
)

# Limits are raised by 5 % each time: a hundred million times in all.
_MOST_RAISES = 400


class StageEpisodes(Episodes):
    """`count` episodes of stage placement, see `Episodes`.

    Args:
        pool: Problems, limits and rewards.
        count: Episodes.
        with_prices: Whether observations have the features of prices.
    """

    pool: ProblemPool
    rows: StageRows
    view: StageView

    def __init__(self, pool: ProblemPool, count: int, with_prices: bool = False) -> None:
        layers, classes = pool.problems.output_bytes.shape[1], pool.problems.class_price.shape[1]
        view = empty_view(count, classes, with_prices=with_prices)
        super().__init__(pool, empty_rows(count, layers, classes), view)
        self.with_prices = with_prices

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

    def _advance(self, actions: Integers) -> None:
        advance(self.pool.problems, self.rows, self.view, actions)

    def _observe(self, which: Integers) -> None:
        observe(self.pool.problems, self.rows, self.view, which)

    def finish(self, ended: Integers) -> Floats:
        """Rewards; the pool learns from the episodes."""
        rewards = super().finish(ended)
        self.pool.improve(self.rows, ended, rewards)
        return rewards

    def describe(self, row: int) -> dict[str, Any]:
        """Problem and limits and, of a complete placement, code, step time and price."""
        rows, problem = self.rows, self.rows.problem[row]
        told: dict[str, Any] = {
            "problem": int(problem),
            "target_s": float(rows.target_s[row]),
            "fill_limit_s": float(rows.fill_limit_s[row]),
        }
        is_complete, problems = rows.status[row] == COMPLETE, self.pool.problems
        if is_complete:
            told["step_time_s"] = float(rows.behind_s[row])
            told["code"] = rows.code[row, : problems.num_layers[problem]].copy()
        if self.with_prices:
            told["price_limit_usd_per_hour"] = float(rows.price_limit_usd_per_hour[row])
            if is_complete:
                dollars = np.dot(rows.used[row], problems.price_usd_per_hour[problem])
                told["price_usd_per_hour"] = float(dollars)
        return told

    def results(self, ended: Integers) -> Sequence[Mapping[str, Any]]:
        """Nothing: training needs no placements, and to copy them takes time."""
        return [{}] * len(ended)

    def image(self, row: int) -> Image:
        """A picture of the placement so far."""
        return draw_stages(self.pool, self.rows, row)

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies of all rows, and of the pool, by name."""
        return {**super().state(), **self.pool.state()}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Takes over pool and rows, and sees again what they saw."""
        self.pool.restore(state)
        super().restore(state)
