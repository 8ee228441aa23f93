"""Episodes of layer placement, many at once: what both environments share."""

from __future__ import annotations

from typing import Any

from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Integers
from heterps_envs.environments.base.drawing import Image
from heterps_envs.environments.base.episodes import Episodes
from heterps_envs.environments.base.state import RUNNING, STUCK
from heterps_envs.environments.layer.kernels import advance_layers, observe_layers
from heterps_envs.environments.layer.pictures import draw_layers
from heterps_envs.environments.layer.pool import Floors, LayerPool
from heterps_envs.environments.layer.state import (
    VERDICTS,
    LayerRows,
    LayerView,
    empty_layer_rows,
    empty_layer_view,
    start_layer_rows,
)


class LayerEpisodes(Episodes):
    """`count` episodes of layer placement, see `Episodes`."""

    pool: LayerPool
    rows: LayerRows
    view: LayerView

    def __init__(self, pool: LayerPool, count: int) -> None:
        max_layers = pool.problems.chains.output_bytes.shape[1]
        rows = empty_layer_rows(count, max_layers, pool.max_classes)
        super().__init__(pool, rows, empty_layer_view(count, pool.num_actions))

    def begin(self, which: Integers, problem: Integers, limits: Floors) -> None:
        """Starts episodes.

        Raises:
            HeterpsError: A floor is not positive.
        """
        if not (limits.floor_s > 0).all():
            raise HeterpsError(
                f"floor_s must be more than 0 seconds a step, not {limits.floor_s.min()}"
            )
        start_layer_rows(self.rows, which, problem, limits.floor_s)
        self._observe(which)

    def _advance(self, actions: Integers) -> None:
        advance_layers(self.pool.problems, self.rows, self.view, actions)

    def _observe(self, which: Integers) -> None:
        observe_layers(self.pool.problems, self.rows, self.view, which)

    def describe(self, row: int) -> dict[str, Any]:
        """Problem and floor; at the end the verdict, and the placement if all layers have one."""
        rows, status = self.rows, int(self.rows.status[row])
        told: dict[str, Any] = {"problem": int(rows.problem[row])}
        told["floor_s"] = float(rows.floor_s[row])
        if status != RUNNING:
            told["verdict"] = VERDICTS[status]
            if status != STUCK:
                layers = self.pool.problems.chains.num_layers[rows.problem[row]]
                told["step_time_s"] = float(rows.step_time_s[row])
                told["price_usd_per_hour"] = float(rows.price_usd_per_hour[row])
                told["code"] = rows.code[row, :layers].copy()
        return told

    def image(self, row: int) -> Image:
        """A picture of the placement so far."""
        return draw_layers(self.pool, self.rows, row)
