"""Problems of layer placement with what their rewards are measured against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats, Integers
from heterps_envs.closed_form.formula import evaluate
from heterps_envs.closed_form.objective import TIE_BREAK_USD_PER_HOUR
from heterps_envs.cost_tables import CostTables
from heterps_envs.environments.base.episodes import Pool
from heterps_envs.environments.base.state import COMPLETE, STUCK
from heterps_envs.environments.layer.state import (
    MISSES_FLOOR,
    OUT_OF_MEMORY,
    LayerProblems,
    LayerRows,
)
from heterps_envs.environments.stage.packed import kernel_of, pack_problems
from heterps_envs.environments.stage.pool import price_greedy

OBJECTIVES = ("throughput", "price")
# Under the objective price a step may take so many times as long as the reference.
LONGEST_STEP = 1.5
# Rewards: the least of a placement that can be used, and what the others begin at.
LEAST_FITTING, FLOOR_MISSED, MEMORY_EXCEEDED, NOTHING_ALLOWED = -3.0, -3.0, -4.0, -5.0


class Floors(NamedTuple):
    """What K episodes must keep.

    Attributes:
        floor_s: (K,) longest step time that is allowed; inf for no floor.
    """

    floor_s: Floats


class LayerPool(Pool):
    """Packed problems with references, from which episodes draw.

    Attributes:
        problems: N problems.
        step_time_s: (N,) of the reference: what the price-guided greedy rule of stage placement
            finds; where it finds nothing, the lower bound of the step time.
        floor_s: (N,) longest step time that is allowed; inf without a floor.
        cost: (N,) the reference's step time, or its price times that.
        with_cuts: Stages may end where the class goes on.
    """

    def __init__(
        self,
        problems: LayerProblems,
        step_time_s: Floats,
        floor_s: Floats,
        cost: Floats,
        with_cuts: bool = False,
    ) -> None:
        self.problems, self.with_cuts = problems, with_cuts
        self.step_time_s, self.floor_s, self.cost = step_time_s, floor_s, cost

    @classmethod
    def from_tables(
        cls,
        tables: Sequence[CostTables],
        max_classes: int = 0,
        objective: str = "throughput",
        longest_step: float | None = None,
        floors_s: Sequence[float] | None = None,
        with_cuts: bool = False,
    ) -> LayerPool:
        """A pool for one objective.

        Args:
            tables: The problems.
            max_classes: Room for device classes; 0 for as many as the largest problem has.
            objective: "throughput" minimises the step time, "price" what a step costs.
            longest_step: The floor: a step may take so many times as long as the reference's. By
                default there is none for throughput, and 1.5 for price.
            floors_s: The floor of each problem in seconds a step instead.
            with_cuts: Stages may end where the class goes on; otherwise as in HeterPS.

        Raises:
            HeterpsError: There is no problem, one is too large, or an argument is not allowed.
        """
        if objective not in OBJECTIVES:
            raise HeterpsError(
                f"there is no objective {objective!r}; allowed: {', '.join(OBJECTIVES)}"
            )
        if floors_s is not None and len(floors_s) != len(tables):
            raise HeterpsError(f"{len(floors_s)} floors for {len(tables)} problems")
        chains = pack_problems(tables, max_classes=max_classes)
        is_price = objective == "price"
        greedy_s, _, codes = price_greedy(chains)
        step_time_s = np.where(np.isfinite(greedy_s), greedy_s, chains.lower_bound_s)
        if longest_step is None:
            longest_step = LONGEST_STEP if is_price else np.inf
        floor_s = step_time_s * longest_step if floors_s is None else np.array(floors_s, float)
        if not (floor_s > 0).all():
            raise HeterpsError("a floor must be more than 0 seconds a step")
        cost = step_time_s.copy()
        if is_price:
            for row, entry in enumerate(tables):
                code = codes[row : row + 1, : entry.num_layers]
                hourly = evaluate(code, kernel_of(chains, row))[1][0]
                if not np.isfinite(greedy_s[row]):
                    hourly = (entry.price_usd_per_hour * entry.device_count).sum()
                cost[row] *= hourly + TIE_BREAK_USD_PER_HOUR
        problems = LayerProblems(chains, np.array([is_price]))
        return cls(problems, step_time_s, floor_s, cost, with_cuts)

    @property
    def max_classes(self) -> int:
        """Device classes that there is room for."""
        return int(self.problems.chains.device_count.shape[1])

    @property
    def num_actions(self) -> int:
        """Candidates of one decision."""
        return self.max_classes * (2 if self.with_cuts else 1)

    def draw_limits(self, rng: np.random.Generator, rows: Integers) -> Floors:
        """The floors of problems."""
        return Floors(self.floor_s[rows])

    def rewards(self, rows: LayerRows, which: NDArray[np.int64]) -> Floats:
        """Rewards of finished episodes: (K,), see `heterps_envs.environments.layer.env`."""
        problem, status = rows.problem[which], rows.status[which]
        step_time_s = np.maximum(rows.step_time_s[which], 1e-12)
        cost = step_time_s
        if self.problems.is_price[0]:
            cost = step_time_s * (rows.price_usd_per_hour[which] + TIE_BREAK_USD_PER_HOUR)
        placed = rows.position[which] / self.problems.chains.num_layers[problem]
        # 1 - 1 / (1 + x) grows from 0 to 1 with the memory that lacks.
        lacking = 1.0 - 1.0 / (1.0 + rows.excess[which])
        return np.select(
            [status == COMPLETE, status == MISSES_FLOOR, status == OUT_OF_MEMORY, status == STUCK],
            [
                np.maximum(np.log(self.cost[problem] / cost), LEAST_FITTING),
                FLOOR_MISSED - (1.0 - np.minimum(rows.floor_s[which] / step_time_s, 1.0)),
                MEMORY_EXCEEDED - lacking,
                NOTHING_ALLOWED - (1.0 - placed),
            ],
            0.0,
        )
