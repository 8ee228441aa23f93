"""Episodes of graph placement, many at once: what both environments share."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Integers
from heterps_envs.environments.graph.kernels import advance_graphs, observe_graphs
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.environments.graph.state import (
    COMPLETE,
    GRAPH_CANDIDATE_FEATURES,
    GRAPH_STATE_FEATURES,
    RUNNING,
    STUCK,
    empty_graph_rows,
    empty_graph_view,
    start_graph_rows,
)


def graph_observation_size(max_devices: int) -> int:
    """Numbers in one observation: the features of all devices, then those of the state."""
    return max_devices * GRAPH_CANDIDATE_FEATURES + GRAPH_STATE_FEATURES


class GraphEpisodes:
    """`count` episodes on problems of a pool. Rows are independent of each other.

    Attributes:
        rows: The states; `rows.problem` says which problem of the pool each row is about.
        view: What is to be seen; `view.node` is the node that comes next.
    """

    def __init__(self, pool: GraphPool, count: int) -> None:
        self.pool, self.count, self.max_devices = pool, count, pool.problems.max_devices
        self.rows = empty_graph_rows(count, pool.problems)
        self.view = empty_graph_view(count, self.max_devices)
        self._everyone = np.arange(count)

    def begin(self, which: Integers, problem: Integers) -> None:
        """Starts episodes."""
        start_graph_rows(self.rows, which, problem)
        observe_graphs(self.pool.problems, self.pool.guides, self.rows, self.view, which)

    def step(self, actions: Integers) -> Integers:
        """Places the next node of every running episode; returns the rows that finished by it."""
        running = self._everyone[self.rows.status == RUNNING]
        problems, guides = self.pool.problems, self.pool.guides
        advance_graphs(problems, guides, self.rows, self.view, actions)
        observe_graphs(problems, guides, self.rows, self.view, running)
        return np.asarray(running[self.rows.status[running] != RUNNING])

    def close(self, which: Integers) -> None:
        """Ends episodes as stuck: nothing may follow."""
        self.rows.status[which] = STUCK
        self.view.allowed[which] = False
        self.view.candidates[which] = 0.0

    def observations(self) -> NDArray[np.float32]:
        """(count, graph_observation_size) float32, within plus or minus LARGEST_GRAPH_RATIO."""
        flat = self.view.candidates.reshape(self.count, -1)
        return np.concatenate([flat, self.view.state], axis=1)

    def last_observations(self, finished: Integers) -> NDArray[np.float32]:
        """(K, graph_observation_size) of finished episodes: no candidates, only the state."""
        out = np.zeros((len(finished), graph_observation_size(self.max_devices)), np.float32)
        out[:, -GRAPH_STATE_FEATURES:] = self.view.state[finished]
        return out

    def describe(self, row: int) -> dict[str, Any]:
        """What a finished episode tells: the problem, and the placement if it is complete."""
        rows = self.rows
        told: dict[str, Any] = {"problem": int(rows.problem[row])}
        if rows.status[row] == COMPLETE:
            nodes = self.pool.problems.num_nodes[rows.problem[row]]
            told["step_time_s"] = float(rows.step_time_s[row])
            told["devices"] = rows.devices[row, :nodes].copy()
        return told
