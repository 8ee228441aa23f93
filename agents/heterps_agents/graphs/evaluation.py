"""How good a policy for graphs is on problems that it never saw, against earliest finish."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from heterps_agents.graphs.decode import GraphDecoder
from heterps_agents.graphs.policy import GraphPolicy
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.graphs.problem import GraphTables
from heterps_envs.problem_sets.graphs import generate_graphs

HELD_OUT_SEED = 20_261_121
SAMPLES = 16
# A placement that ran out of memory counts as so many times earliest finish.
FAILED = 4.0


class HeldOutGraphs:
    """Random problems in the range of the default training, judged by a policy's samples.

    Args:
        count: How many.
        tables: Other problems instead.
    """

    def __init__(self, count: int, tables: list[GraphTables] | None = None) -> None:
        problems = generate_graphs(count, HELD_OUT_SEED) if tables is None else tables[:count]
        self.pool = GraphPool.from_tables(problems)

    def shares(self, policy: GraphPolicy) -> NDArray[np.float64]:
        """(N, 2) step times over earliest finish: greedy, and best of 16 with greedy among them."""
        out = np.empty((self.pool.problems.num_problems, 2))
        for problem, earliest_s in enumerate(self.pool.reference_s):
            decoder = GraphDecoder(policy, self.pool, problem)
            found = decoder.samples(SAMPLES, np.random.default_rng(problem)).step_time_s
            out[problem] = np.minimum([found[0], found.min()] / earliest_s, FAILED)
        return out

    def scores(self, policy: GraphPolicy) -> dict[str, float]:
        """`greedy_mean`, `greedy_median`, `samples16_mean`, `samples16_median`."""
        shares = self.shares(policy)
        return {
            f"{name}_{kind}": float(summary(shares[:, column]))
            for column, name in enumerate(("greedy", f"samples{SAMPLES}"))
            for kind, summary in (("mean", np.mean), ("median", np.median))
        }
