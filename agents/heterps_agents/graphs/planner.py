"""Places a graph: earliest finish, then samples of a trained policy, then annealing of the best.

Anytime: whatever the budget, the best placement so far is returned, and it is never worse than
earliest finish. Of a tiny graph all placements are looked at in place of annealing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from heterps_agents.graphs.annealing import anneal_from_starts
from heterps_agents.graphs.decode import GraphDecoder
from heterps_agents.graphs.earliest_finish import simple_placement
from heterps_agents.graphs.policy import GraphPolicy
from heterps_agents.interface.planner import Budget
from heterps_agents.learned.efforts import DEFAULT_EFFORT, effort_named
from heterps_configs.documents.effort import GraphEffort
from heterps_configs.errors import InfeasibleError
from heterps_configs.units import bytes_text
from heterps_envs.environments.graph.pool import GraphPool
from heterps_envs.graphs.problem import GraphTables, Placement
from heterps_envs.graphs.simulator import graph_step_times

DEFAULT_GRAPH_POLICY = "graph-generalist"
_SAMPLES_AT_ONCE = 8
# Annealing begins from so many placements.
_STARTS = 3
# All placements are looked at where there are no more, and no more than annealing would look at.
MOST_ENUMERATED = 4096
# Of a limit in seconds: annealing makes more of the rest than further samples would.
_LARGEST_SAMPLING_SHARE = 0.3


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
    effort: str | GraphEffort = DEFAULT_EFFORT,
    *,
    budget: Budget | None = None,
    seed: int = 0,
    policy: GraphPolicy | None = None,
) -> GraphAnswer:
    """The best placement found.

    Args:
        tables: The problem.
        effort: Name of an effort, or one of your own.
        budget: Ends the search earlier; unlimited by default.
        seed: Equal seeds give equal placements, unless a limit in seconds ends the search.
        policy: By default the shipped one.

    Raises:
        UnknownNameError: No effort has that name.
        InfeasibleError: No placement was found that memory holds.
        HeterpsError: A node can run on no device.
    """
    wanted = effort_named(effort).graphs if isinstance(effort, str) else effort
    search = _Search(_pool(tables), budget or Budget())
    search.try_simple_placements()
    search.try_samples(wanted.samples, policy, np.random.default_rng(seed))
    search.polish(wanted.polish_evaluations, seed)
    return search.answer()


class _Search:
    """The best placement so far, from earliest finish on."""

    def __init__(self, pool: GraphPool, budget: Budget) -> None:
        self.pool, self.budget = pool, budget
        self.nodes = int(pool.problems.num_nodes[0])
        self.num_devices = int(pool.problems.num_devices[0])
        self.step_time_s, self.sampled_s = float(pool.reference_s[0]), math.inf
        self.devices = pool.reference[0, : self.nodes].copy()
        self.simple = self.devices
        self.sampled: list[tuple[float, Placement]] = []
        budget.spend()

    def _keep(self, devices: Placement, step_time_s: float) -> None:
        if step_time_s < self.step_time_s:
            self.devices, self.step_time_s = devices[: self.nodes].copy(), step_time_s

    def try_simple_placements(self) -> None:
        """The earliest-finish rule in another order, and everything on one device."""
        if self.budget.evaluations_left is not None:
            return  # So few evaluations count that the policy uses them better.
        devices = simple_placement(self.pool.problems, 0, self.budget)
        padded = np.zeros((1, self.pool.problems.max_nodes), np.int16)
        padded[0, : self.nodes] = devices
        step_time_s, overflow = np.empty(1), np.empty(1)
        graph_step_times(self.pool.problems, np.zeros(1, np.int64), padded, step_time_s, overflow)
        self.simple = devices
        self._keep(devices, math.inf if overflow[0] > 0 else float(step_time_s[0]))

    def try_samples(self, count: int, policy: GraphPolicy | None, rng: np.random.Generator) -> None:
        """Placements of the policy, in batches between which the budget is looked at."""
        decoder: GraphDecoder | None = None
        done = 0
        while done < count and not self.budget.is_exhausted:
            if done and self.budget.time_share > _LARGEST_SAMPLING_SHARE:
                return
            # The policy is read when it is first needed.
            decoder = decoder or GraphDecoder(policy or shipped_graph_policy(), self.pool)
            size = min(count - done, _SAMPLES_AT_ONCE)
            if self.budget.evaluations_left is not None:
                size = min(size, self.budget.evaluations_left)
            found = decoder.samples(size, rng, greedy=done == 0)
            self.budget.spend(size)
            done += size
            self.sampled += [
                (float(step_time_s), devices)
                for step_time_s, devices in zip(found.step_time_s, found.devices, strict=True)
                if math.isfinite(step_time_s)
            ]
            best = int(found.step_time_s.argmin())
            self.sampled_s = min(self.sampled_s, float(found.step_time_s[best]))
            self._keep(found.devices[best], float(found.step_time_s[best]))

    def polish(self, evaluations: int | None, seed: int) -> None:
        """Annealing from the best placements, with pieces of the samples; or all placements."""
        if evaluations == 0 or self.budget.is_exhausted:
            return
        limits = (evaluations, self.budget.evaluations_left, MOST_ENUMERATED)
        if self.num_devices**self.nodes <= min(limit for limit in limits if limit is not None):
            self._try_all()
            return
        others = np.array([devices for _, devices in self.sampled]) if self.sampled else None
        self._keep(
            *anneal_from_starts(
                self.pool.problems, 0, self._starts(), self.budget, seed,
                max_evaluations=evaluations, others=others,
            )
        )  # fmt: skip

    def _try_all(self) -> None:
        """Every placement; of a tiny graph."""
        count = self.num_devices**self.nodes
        every = np.zeros((count, self.pool.problems.max_nodes), np.int16)
        every[:, : self.nodes] = np.indices((self.num_devices,) * self.nodes).reshape(-1, count).T
        step_time_s, overflow = np.empty(count), np.empty(count)
        rows = np.zeros(count, np.int64)
        graph_step_times(self.pool.problems, rows, every, step_time_s, overflow)
        self.budget.spend(count)
        step_time_s[overflow > 0] = math.inf
        best = int(step_time_s.argmin())
        self._keep(every[best], float(step_time_s[best]))

    def _starts(self) -> list[Placement]:
        """Three that differ: the best placement, the best simple one, then the best samples."""
        starts: list[Placement] = []
        samples = sorted(self.sampled, key=lambda sample: sample[0])
        for devices in (self.devices, self.simple, *(devices for _, devices in samples)):
            if not any(np.array_equal(devices, start) for start in starts):
                starts.append(devices)
        return starts[:_STARTS]

    def answer(self) -> GraphAnswer:
        """The best placement that was found."""
        return GraphAnswer(
            devices=self.devices,
            step_time_s=self.step_time_s,
            earliest_s=float(self.pool.reference_s[0]),
            sampled_s=self.sampled_s,
            evaluations=self.budget.evaluations_used,
        )


def _pool(tables: GraphTables) -> GraphPool:
    """The problem with what the policy needs to know of it."""
    needed, room = tables.memory_bytes.sum(), tables.device_memory_bytes.sum()
    if needed > room:
        raise InfeasibleError(
            f"the graph needs {bytes_text(needed)} of memory for its batch; beside their buffers, "
            f"all devices together have {bytes_text(room)}"
        )
    return GraphPool.from_tables([tables])
