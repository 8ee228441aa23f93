"""Problems with price limits: cheap placements under a throughput floor, fast ones under a budget.

Each problem has *anchors*: placements that no other beats in both step time and price. An episode
is drawn around one of them, so the limits of every episode can be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats
from heterps_envs.closed_form.placement import decode
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.base.state import COMPLETE
from heterps_envs.environments.stage.packed import StageProblems
from heterps_envs.environments.stage.pool import (
    LEAST_SUCCESS_REWARD,
    ROUNDING,
    STEP_TIME_WEIGHT,
    SUCCESS_REWARD,
    TARGET_RANGE,
    ProblemPool,
    greedy_references,
)
from heterps_envs.environments.stage.state import Limits, StageRows

PricedObjective = Literal["price", "budget"]
# Anchors of a problem that are kept: the fastest, the cheapest, and some between them.
MOST_ANCHORS = 12
# Episodes without a price limit; with the anchor's own price; with up to so much more.
UNLIMITED_SHARE, EXACT_SHARE, LARGEST_EXCESS = 0.2, 0.4, 0.3


class Anchor(NamedTuple):
    """A placement that no other beats in both step time and price times step time.

    Attributes:
        step_time_s: Closed form.
        bottleneck_s: See `heterps_envs.environments.stage.state`.
        price_usd_per_hour: Of the devices that it uses.
    """

    step_time_s: float
    bottleneck_s: float
    price_usd_per_hour: float


class PricedPool(ProblemPool):
    """A pool whose episodes have price limits.

    Args:
        problems: N problems.
        anchors: N times at least one, the fastest first.
        target_range: See `ProblemPool`.
        prioritised_share: See `ProblemPool`.
        objective: What rewards compare: `price`: price times step time. `budget`: the step time.

    Raises:
        HeterpsError: There is no such objective.

    Attributes:
        num_anchors: (N,).
        anchors: (N, MOST_ANCHORS, 3) their numbers, see `Anchor`; inf where there is none.
    """

    def __init__(
        self,
        problems: StageProblems,
        anchors: Sequence[Sequence[Anchor]],
        target_range: tuple[float, float] = TARGET_RANGE,
        prioritised_share: float = 0.0,
        objective: PricedObjective = "price",
    ) -> None:
        if objective not in get_args(PricedObjective):
            known = ", ".join(get_args(PricedObjective))
            raise HeterpsError(f"there is no objective {objective!r}; allowed: {known}")
        count = len(anchors)
        self.objective = objective
        self.num_anchors = np.zeros(count, np.int64)
        self.anchors = np.full((count, MOST_ANCHORS, 3), np.inf)
        fastest = np.array([entries[0] for entries in anchors])
        super().__init__(
            problems,
            fastest[:, 0].copy(),
            fastest[:, 1].copy(),
            target_range,
            prioritised_share=prioritised_share,
        )
        for row, entries in enumerate(anchors):
            self._put_anchors(row, entries)

    @classmethod
    def from_tables(
        cls,
        tables: Sequence[CostTables],
        max_classes: int = 0,
        target_range: tuple[float, float] = TARGET_RANGE,
        objective: PricedObjective = "price",
    ) -> PricedPool:
        """A pool whose only anchors are what the greedy rule of `ProblemPool` finds.

        Raises:
            HeterpsError: It finds no placement of any problem, or there is no such objective.
        """
        problems, (step_time_s, bottleneck_s, codes) = greedy_references(tables, max_classes)
        anchors = []
        for row, prices in enumerate(problems.price_usd_per_hour):
            stages = decode(codes[row, : problems.num_layers[row]])
            price = sum(prices[stage.device_class] * stage.replicas for stage in stages)
            anchors.append([Anchor(float(step_time_s[row]), float(bottleneck_s[row]), price)])
        return cls(problems, anchors, target_range, objective=objective)

    def draw_limits(self, rng: np.random.Generator, rows: NDArray[np.int64]) -> Limits:
        """Limits around a random anchor of each problem; some without a price limit."""
        count = len(rows)
        is_unlimited = rng.random(count) < UNLIMITED_SHARE
        which = np.where(is_unlimited, 0, rng.integers(0, self.num_anchors[rows]))
        step_time_s, bottleneck_s, price = self.anchors[rows, which].T
        excess = np.where(
            rng.random(count) < EXACT_SHARE, 0.0, rng.uniform(0, LARGEST_EXCESS, count)
        )
        price_limit = np.where(is_unlimited, np.inf, price * (1 + excess) * (1 + ROUNDING))
        return Limits(*self._times_around(rng, rows, step_time_s, bottleneck_s), price_limit)

    def rewards(self, rows: StageRows, which: NDArray[np.int64]) -> Floats:
        """As in `ProblemPool`, for what the objective counts.

        The reference is the best anchor that keeps the limits of the episode.
        """
        rewards = super().rewards(rows, which)
        price = (rows.used[which] * self.problems.price_usd_per_hour[rows.problem[which]]).sum(1)
        is_limited = np.isfinite(rows.price_limit_usd_per_hour[which])
        counts_price = is_limited & (self.objective == "price")
        cost = np.where(counts_price, price, 1.0) * rows.behind_s[which]
        best = self._best_cost(rows, which, counts_price)
        ratio = np.maximum(best, 1e-30) / np.maximum(cost, 1e-30)
        success = SUCCESS_REWARD + STEP_TIME_WEIGHT * np.log(ratio)
        success = np.clip(success, LEAST_SUCCESS_REWARD, 2 * SUCCESS_REWARD)
        return np.where(rows.status[which] == COMPLETE, success, rewards)

    def _best_cost(
        self, rows: StageRows, which: NDArray[np.int64], counts_price: NDArray[np.bool_]
    ) -> Floats:
        """(K,) of the best anchor within the limits, or of the one that misses them least."""
        step_time_s, bottleneck_s, price = np.moveaxis(self.anchors[rows.problem[which]], 2, 0)
        exists = np.isfinite(step_time_s)
        fill_s = np.where(exists, step_time_s, 0.0) - np.where(exists, bottleneck_s, 0.0)
        excess = np.where(exists, 0.0, np.inf)
        for needed, allowed in (
            (price, rows.price_limit_usd_per_hour),
            (bottleneck_s, rows.target_s),
            (fill_s, rows.fill_limit_s),
        ):
            limit = allowed[which][:, None] * (1 + 2 * ROUNDING)
            known = np.where(exists, needed, 0.0)
            excess = np.maximum(excess, known / np.maximum(limit, 1e-30) - 1)
        cost = np.where(counts_price[:, None], np.where(exists, price, 1.0), 1.0) * step_time_s
        keeps = excess <= 0
        nearest = excess == excess.min(axis=1, keepdims=True)
        usable = np.where(keeps.any(axis=1, keepdims=True), keeps, nearest)
        return np.asarray(np.where(usable, cost, np.inf).min(axis=1))

    def replace(
        self,
        row: int,
        tables: CostTables,
        step_time_s: float,
        bottleneck_s: float,
        anchors: Sequence[Anchor] = (),
    ) -> None:
        """Puts another problem into a row that no running episode uses."""
        super().replace(row, tables, step_time_s, bottleneck_s)
        self._put_anchors(row, anchors)

    def _put_anchors(self, row: int, anchors: Sequence[Anchor]) -> None:
        assert anchors, "every problem has a fastest placement"
        chosen = np.unique(np.linspace(0, len(anchors) - 1, MOST_ANCHORS).round().astype(int))
        self.num_anchors[row] = len(chosen)
        self.anchors[row] = np.inf
        self.anchors[row, : len(chosen)] = np.array([anchors[index] for index in chosen])

    def _arrays(self) -> dict[str, NDArray[Any]]:
        return {
            **super()._arrays(), "anchors.count": self.num_anchors, "anchors.numbers": self.anchors,
        }  # fmt: skip
