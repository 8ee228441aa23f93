"""Placements of graphs from a trained policy alone: greedy, and samples."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.graphs.rollout_kernels import (
    Draws,
    GraphScorer,
    Record,
    empty_record,
    roll_out,
    size_scales,
)
from heterps_agents.interface.blas_threads import one_blas_thread
from heterps_envs.arrays import Floats
from heterps_envs.environments.base.state import COMPLETE, LARGEST_RATIO
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.environments.graph.state import (
    GraphRows,
    empty_graph_rows,
    empty_graph_view,
    start_graph_rows,
)
from heterps_envs.graphs.problem import Placement

# Of samples: found on graphs that are in no test set. Cooler ones repeat each other.
SAMPLE_TEMPERATURE = 0.6
_NOTHING_KEPT = empty_record(0, 0, 0)


class Rollouts(NamedTuple):
    """B placements of one problem.

    Attributes:
        devices: (B, V) int16.
        step_time_s: (B,) inf where a node found no device with memory left.
        placed: (B,) share of the nodes that found one.
    """

    devices: Placement
    step_time_s: Floats
    placed: Floats


def scaled_node_features(pool: GraphPool, problem: int) -> NDArray[np.float32]:
    """(V, GRAPH_NODE_FEATURES) of a problem, as the policy reads them; see `size_scales`."""
    count = int(pool.problems.num_nodes[problem])
    features = pool.guides.node_features[problem, :count] * size_scales(count).nodes
    return np.asarray(np.clip(features, -LARGEST_RATIO, LARGEST_RATIO), np.float32)


class GraphDecoder:
    """A policy that has read one problem.

    Args:
        policy: The policy.
        pool: Problems.
        problem: Row of the one to place.
    """

    @one_blas_thread()
    def __init__(self, policy: GraphPolicy, pool: GraphPool, problem: int = 0) -> None:
        self.pool, self.problem = pool, problem
        self.num_nodes = int(pool.problems.num_nodes[problem])
        self.node_features = scaled_node_features(pool, problem)
        embeddings = policy.embeddings(self.node_features, *pool.producer_edges(problem))
        self._scorer = GraphScorer(
            policy.scorer_weights(), *policy.node_terms(embeddings), size_scales(self.num_nodes)
        )

    @one_blas_thread()
    def roll_out(
        self,
        temperature: Floats,
        rng: np.random.Generator,
        record: Record = _NOTHING_KEPT,
        rows: GraphRows | None = None,
        given: Placement | None = None,
    ) -> Rollouts:
        """Places the graph B times.

        Args:
            temperature: (B,) 0 for the most probable devices, 1 for samples of the policy.
            rng: Of the draws.
            record: Gets every decision where it has room.
            rows: Room for B episodes, to be used again; by default it is made.
            given: (G, V) placements that the first G take instead of the policy's.
        """
        problems, count = self.pool.problems, len(temperature)
        if rows is None:
            rows = empty_graph_rows(count, problems)
        start_graph_rows(rows, np.arange(count), self.problem)
        view = empty_graph_view(count, problems.max_devices)
        draws = Draws(
            np.asarray(temperature, np.float64),
            np.zeros((0, self.num_nodes), np.int16) if given is None else given,
        )
        roll_out(problems, self.pool.guides, rows, view, self._scorer, draws, rng, record)
        step_time_s = np.where(rows.status == COMPLETE, rows.step_time_s, np.inf)
        placed = rows.position / self.num_nodes
        return Rollouts(rows.devices[:, : self.num_nodes].copy(), step_time_s, placed)

    def samples(self, count: int, rng: np.random.Generator, greedy: bool = True) -> Rollouts:
        """`count` placements, of which the first is the most probable one if `greedy`."""
        temperature = np.full(count, SAMPLE_TEMPERATURE)
        if greedy:
            temperature[0] = 0.0
        return self.roll_out(temperature, rng)
