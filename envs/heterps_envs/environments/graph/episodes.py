"""Episodes of graph placement, many at once: what both environments share."""

from __future__ import annotations

from typing import Any

import numpy as np

from heterps_envs.arrays import Integers
from heterps_envs.environments.base.drawing import Image
from heterps_envs.environments.base.episodes import Episodes
from heterps_envs.environments.base.state import COMPLETE
from heterps_envs.environments.graph.kernels import advance_graphs, observe_graphs
from heterps_envs.environments.graph.pictures import draw_graphs
from heterps_envs.environments.graph.pool import GraphPool, NoLimits
from heterps_envs.environments.graph.state import (
    GraphRows,
    GraphView,
    empty_graph_rows,
    empty_graph_view,
    start_graph_rows,
)


class GraphEpisodes(Episodes):
    """`count` episodes of graph placement, see `Episodes`.

    Attributes:
        rows: The states; `rows.problem` says which problem of the pool each row is about.
        view: What is to be seen; `view.node` is the node that comes next.
    """

    pool: GraphPool
    rows: GraphRows
    view: GraphView

    def __init__(self, pool: GraphPool, count: int) -> None:
        view = empty_graph_view(count, pool.problems.max_devices)
        super().__init__(pool, empty_graph_rows(count, pool.problems), view)

    def begin(self, which: Integers, problem: Integers, limits: NoLimits = NoLimits()) -> None:
        """Starts episodes."""
        start_graph_rows(self.rows, which, problem)
        self._observe(which)

    def _advance(self, actions: Integers) -> None:
        whole = np.asarray(actions, np.int64)
        advance_graphs(self.pool.problems, self.pool.guides, self.rows, self.view, whole)

    def _observe(self, which: Integers) -> None:
        observe_graphs(self.pool.problems, self.pool.guides, self.rows, self.view, which)

    def describe(self, row: int) -> dict[str, Any]:
        """Problem and next node; the placement if it is complete."""
        rows = self.rows
        told: dict[str, Any] = {"node": int(self.view.node[row]), "problem": int(rows.problem[row])}
        if rows.status[row] == COMPLETE:
            nodes = self.pool.problems.num_nodes[rows.problem[row]]
            told["step_time_s"] = float(rows.step_time_s[row])
            told["devices"] = rows.devices[row, :nodes].copy()
        return told

    def image(self, row: int) -> Image:
        """A picture of the placement so far."""
        return draw_graphs(self.pool, self.rows, row)
