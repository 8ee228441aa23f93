"""Graphs to learn from, each with the earliest-finish placement that sets scales and rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.errors import InfeasibleError
from heterps_envs.arrays import Floats, Integers
from heterps_envs.environments.base.episodes import Pool
from heterps_envs.environments.base.state import COMPLETE
from heterps_envs.environments.graph.guides import GraphGuides, graph_guides, put_guide
from heterps_envs.environments.graph.state import GraphRows
from heterps_envs.graphs.earliest_finish import earliest_finish_placements, earliest_finish_row
from heterps_envs.graphs.problem import (
    GraphProblems,
    GraphTables,
    Placement,
    pack_graphs,
    put_graph,
)

# A complete placement is never worth less than one that is stuck at its first node.
LEAST_COMPLETE_REWARD = -1.0


class NoLimits(NamedTuple):
    """Episodes on graphs have none."""


class GraphPool(Pool):
    """Packed problems with references, from which episodes draw.

    Attributes:
        problems: N problems.
        guides: What is known of them before any node is placed; `guides.node_features` and
            `producer_edges` are what message passing reads.
        reference_s: (N,) step time of the earliest-finish placement.
        reference: (N, V) int16 that placement.
    """

    def __init__(self, problems: GraphProblems, reference_s: Floats, reference: Placement) -> None:
        self.problems, self.reference = problems, reference
        self.guides: GraphGuides = graph_guides(problems, reference_s)

    @classmethod
    def from_tables(
        cls,
        tables: Sequence[GraphTables],
        max_nodes: int = 0,
        max_devices: int = 0,
        max_edges: int = 0,
    ) -> GraphPool:
        """A pool of problems; the rooms are those of `heterps_envs.graphs.problem.pack_graphs`.

        Problems for which neither the earliest-finish rule nor a simple packing finds a placement
        that fits are left out.

        Raises:
            InfeasibleError: None is left.
            HeterpsError: One is larger than the room.
        """
        problems = pack_graphs(tables, max_nodes, max_devices, max_edges)
        reference_s, reference = earliest_finish_placements(problems)
        found = np.isfinite(reference_s)
        if not found.any():
            raise InfeasibleError(
                "no placement was found that the memory of the devices holds: nodes are too large "
                "to be packed onto them"
            )
        kept = GraphProblems._make(array[found] for array in problems)
        return cls(kept, reference_s[found], reference[found])

    @property
    def reference_s(self) -> Floats:
        """(N,) step times of the earliest-finish placements."""
        return self.guides.reference_s

    def producer_edges(self, row: int) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """(E,) producers and (E,) consumers: the two ends of each edge of a problem."""
        nodes = int(self.problems.num_nodes[row])
        start = self.problems.producer_start[row, : nodes + 1]
        consumers = np.repeat(np.arange(nodes, dtype=np.int32), np.diff(start))
        return self.problems.producers[row, : start[-1]], consumers

    def draw_limits(self, rng: np.random.Generator, rows: Integers) -> NoLimits:
        """Nothing: all is allowed that fits."""
        return NoLimits()

    def rewards(self, rows: GraphRows, which: Integers) -> Floats:
        """Rewards of finished episodes: (K,).

        A complete placement: log(earliest-finish step time / its step time), at least -1. A stuck
        one: -1 minus the share of the nodes that have no device.
        """
        problem = rows.problem[which]
        unplaced = 1.0 - rows.position[which] / self.problems.num_nodes[problem]
        is_complete = rows.status[which] == COMPLETE
        step_time_s = np.where(is_complete, rows.step_time_s[which], 1.0)
        complete = np.log(self.reference_s[problem] / step_time_s)
        return np.where(is_complete, np.maximum(complete, LEAST_COMPLETE_REWARD), -1.0 - unplaced)

    def replace(self, row: int, tables: GraphTables) -> bool:
        """Puts another problem into a row that no running episode uses.

        Returns:
            Whether it has a placement that the earliest-finish rule finds. If not, the row must
            not be used until another problem is put there.

        Raises:
            HeterpsError: The problem is larger than the room.
        """
        put_graph(self.problems, row, tables)
        step_time_s = earliest_finish_row(self.problems, row, self.reference[row])
        self.guides.reference_s[row] = step_time_s
        if np.isfinite(step_time_s):
            put_guide(self.problems, self.guides, row)
        return bool(np.isfinite(step_time_s))
