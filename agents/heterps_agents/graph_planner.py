"""Places a graph: earliest finish, then samples of a trained policy, then annealing of the best.

Anytime: whatever the budget, the best placement so far is returned, and it is never worse than
earliest finish.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple

import numpy as np

from heterps_agents.graph_annealing import anneal_packed_graph
from heterps_agents.graph_decode import GraphDecoder
from heterps_agents.graph_policy import GraphPolicy
from heterps_agents.planner import Budget
from heterps_configs.errors import InfeasibleError
from heterps_envs.graph_pool import GraphPool
from heterps_envs.graph_problem import GraphTables, Placement

DEFAULT_GRAPH_POLICY = "graph-generalist"
# The polish starts near a good placement: it may not forget it.
POLISH_TEMPERATURE = 0.01
_SAMPLES_AT_ONCE = 16

GraphEffortName = Literal["fast", "normal", "high"]


class GraphEffort(NamedTuple):
    """How much is done, where the budget does not end it earlier.

    Attributes:
        samples: Placements of the policy, the first of them greedy.
        polish_evaluations: Of annealing from the best of them.
    """

    samples: int
    polish_evaluations: int


GRAPH_EFFORTS: dict[str, GraphEffort] = {
    "fast": GraphEffort(1, 0),
    "normal": GraphEffort(16, 30_000),
    "high": GraphEffort(64, 300_000),
}


@dataclass(frozen=True)
class GraphAnswer:
    """A placement and what it took.

    Attributes:
        devices: (V,) int16.
        step_time_s: Of the simulated step.
        earliest_s: Step time of the earliest-finish rule.
        sampled_s: Best step time of the policy's samples; inf where there was none.
        evaluations: Placements looked at.
    """

    devices: Placement
    step_time_s: float
    earliest_s: float
    sampled_s: float
    evaluations: int


@lru_cache(maxsize=1)
def shipped_graph_policy() -> GraphPolicy:
    """The policy that comes with heterps."""
    return GraphPolicy.load(DEFAULT_GRAPH_POLICY)


def place_graph(
    tables: GraphTables,
    effort: GraphEffortName = "normal",
    *,
    budget: Budget | None = None,
    seed: int = 0,
    policy: GraphPolicy | None = None,
) -> GraphAnswer:
    """The best placement found.

    Args:
        tables: The problem.
        effort: A name of `GRAPH_EFFORTS`.
        budget: Ends the search earlier; unlimited by default.
        seed: Equal seeds give equal placements, unless a limit in seconds ends the search.
        policy: By default the shipped one.

    Raises:
        InfeasibleError: No placement was found that memory holds.
        HeterpsError: A node can run on no device.
    """
    wanted, spent = GRAPH_EFFORTS[effort], budget or Budget()
    try:
        pool = GraphPool.from_tables([tables])
    except InfeasibleError:
        raise
    nodes = tables.num_nodes
    earliest_s, devices = float(pool.reference_s[0]), pool.reference[0, :nodes]
    spent.spend()
    step_time_s, sampled_s = earliest_s, math.inf
    decoder: GraphDecoder | None = None
    rng, done = np.random.default_rng(seed), 0
    while done < wanted.samples and not spent.is_exhausted:
        decoder = decoder or GraphDecoder(policy or shipped_graph_policy(), pool)
        left = spent.evaluations_left
        count = min(
            wanted.samples - done, _SAMPLES_AT_ONCE, _SAMPLES_AT_ONCE if left is None else left
        )
        found = decoder.samples(count, rng, greedy=done == 0)
        spent.spend(count)
        done += count
        best = int(found.step_time_s.argmin())
        sampled_s = min(sampled_s, float(found.step_time_s[best]))
        if found.step_time_s[best] < step_time_s:
            devices, step_time_s = found.devices[best], float(found.step_time_s[best])
    if wanted.polish_evaluations and not spent.is_exhausted:
        polished, polished_s = anneal_packed_graph(
            pool.problems, 0, devices, spent, seed, POLISH_TEMPERATURE, wanted.polish_evaluations
        )
        if polished_s < step_time_s:
            devices, step_time_s = polished, polished_s
    return GraphAnswer(
        np.array(devices), step_time_s, earliest_s, sampled_s, spent.evaluations_used
    )
