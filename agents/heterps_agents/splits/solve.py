"""Splits of operator graphs that need not be contiguous: the smallest largest load, with a bound.

The search anneals coarse groups, then finer ones, and divides pairs of devices anew, each time
almost exactly (`local_optima`). The bound comes from prices (`bound`). Where they do not meet,
HiGHS gets what time is left (`milp`): it closes small graphs whose bound by prices is weak.
Contiguity is not asked for: pipelines that run such a split send a micro-batch through a device
more than once.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_agents.splits.border_states import border_states
from heterps_agents.splits.bound import SplitBound
from heterps_agents.splits.groups import group_graph
from heterps_agents.splits.local_optima import LocalOptima, first_split
from heterps_agents.splits.milp import milp_split
from heterps_agents.splits.search import Devices, fits, loads_of
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.units import bytes_text
from heterps_envs.arrays import Integers
from heterps_envs.certificates.split import SplitCertificate
from heterps_envs.graphs.operators import assignment_problems, graph_arrays, max_load

# Searches in a row that find nothing better before the bound gets its turn.
PATIENCE = 4
# Shares of the time: search before the bound, and all but the integer programme.
SEARCH_SHARE, BEFORE_MILP_SHARE = 0.35, 0.75
# Loads are refuted this far below the known split: what refutes one helps to refute the next.
GAPS = (0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5, 0.0)
MAX_ATTEMPTS, BISECTIONS = 4, 3
PROVEN_GAP = 1e-6
# The integer programme of a larger graph does not get anywhere in a minute.
MAX_MILP_CHOICES = 1500


class GraphSplit(NamedTuple):
    """A split, and how good it can still become.

    Attributes:
        assignment: Device of each node, accelerators first.
        max_load_s: Its largest load, `heterps_envs.graphs.operators.max_load`.
        lower_bound_s: No split has a smaller one.
        evidence: What the bound rests on: `groups`, `prices` or `integer programme`.
        certificate: What `heterps_envs.certificates.split` re-checks the split and its bound by.
    """

    assignment: tuple[int, ...]
    max_load_s: float
    lower_bound_s: float
    evidence: str
    certificate: SplitCertificate

    @property
    def gap(self) -> float:
        """`max_load_s` over the bound, minus 1."""
        if self.lower_bound_s == 0:
            return 0.0 if self.max_load_s == 0 else math.inf
        return max(0.0, self.max_load_s / self.lower_bound_s - 1)

    @property
    def is_proven(self) -> bool:
        """Whether no split is better by more than one millionth."""
        return self.gap <= PROVEN_GAP


def split_graph(
    graph: OperatorGraph,
    *,
    max_seconds: float = 50.0,
    target_gap: float = 0.005,
    seed: int = 0,
    known: Sequence[int] | None = None,
) -> GraphSplit:
    """A split over the graph's devices with a small largest load, contiguous or not.

    Args:
        graph: With its devices, memory and colour classes.
        max_seconds: CPU time for search and proof, so that a busy machine changes no answer. They
            end earlier when the gap is small enough.
        target_gap: Proven gap at which to stop, once the search finds nothing better.
        seed: Of the search.
        known: Device of each node of a split to start from, such as the best contiguous one.

    Raises:
        InfeasibleError: No split fits into memory, or none was found; with what is too large.
        HeterpsError: `known` is not a split.
    """
    return _Solver(graph, max_seconds, target_gap, seed).solve(known)


class _Solver:
    def __init__(
        self, graph: OperatorGraph, max_seconds: float, target_gap: float, seed: int
    ) -> None:
        self.graph, self.target_gap, self.seed = graph, target_gap, seed
        self.node_group = graph_arrays(graph).group
        self.groups = group_graph(graph_arrays(graph))
        capacity = graph.accelerator_memory_bytes
        memory_bytes = math.inf if capacity is None else capacity
        self.devices = Devices(graph.num_accelerators, graph.num_cpus, memory_bytes)
        self.started, self.max_seconds = time.process_time(), max_seconds
        self.best: Integers | None = None
        self.best_s, self.bound_s, self.evidence = math.inf, 0.0, "groups"
        self.bound: SplitBound | None = None

    def solve(self, known: Sequence[int] | None) -> GraphSplit:
        start = self._first_split() if known is None else self._checked(known)
        self._keep(start)
        assert self.best is not None, "the first split fits"
        if self.best_s == 0:
            return self._result()
        optima = LocalOptima(
            self.groups, self.devices, self.seed, self._known, lambda: self._is_over(1.0)
        )
        self._keep(optima.first())
        states = border_states(self.groups)
        self.bound = bound = SplitBound(self.groups, self.devices, states)
        self.bound_s = bound.at_once()
        searches = optima.along(states.order)
        fruitless = 0
        while fruitless < PATIENCE and not self._is_over(SEARCH_SHARE) and not self._is_best():
            before = self.best_s
            self._keep(next(searches))
            fruitless = 0 if self.best_s < before else fruitless + 1
        self._raise_bound(bound)
        if self.groups.num_groups * len(self._loads()) <= MAX_MILP_CHOICES:
            self._ask_milp()
        while not self._is_good() and not self._is_over(1.0):
            before = self.best_s
            self._keep(next(searches))
            if self.best_s < before:
                self._raise_bound(bound)
        return self._result()

    def _is_over(self, share: float) -> bool:
        return time.process_time() - self.started > share * self.max_seconds

    def _is_good(self) -> bool:
        return self.best_s <= self.bound_s * (1 + max(self.target_gap, PROVEN_GAP))

    def _is_best(self) -> bool:
        return self.best_s <= self.bound_s * (1 + PROVEN_GAP)

    def _known(self) -> Integers:
        assert self.best is not None
        return self.best

    def _loads(self) -> np.ndarray:
        return loads_of(self.groups, self.devices, self._known())

    def _keep(self, assignment: Integers) -> None:
        load_s = float(loads_of(self.groups, self.devices, assignment).max())
        if load_s < self.best_s:
            self.best, self.best_s = assignment, load_s

    def _raise_bound(self, bound: SplitBound) -> None:
        """Refutes loads below the best one, the easiest first."""
        assert self.best is not None
        for device in range(self.devices.num_accelerators):
            bound.add((self.best == device)[None])
        target = max(self.target_gap, PROVEN_GAP)
        for step in GAPS:
            limit_s = self.best_s / (1 + max(step, target * (1 - 1e-3)))
            if self._is_good() or limit_s <= self.bound_s:
                continue
            if not self._refute(bound, limit_s):
                self._narrow(bound, limit_s)
                return

    def _narrow(self, bound: SplitBound, failed_s: float) -> None:
        """Refutes loads between the bound and one that no prices refute."""
        for _ in range(BISECTIONS):
            if self._is_over(BEFORE_MILP_SHARE):
                return
            middle_s = 0.5 * (self.bound_s + failed_s)
            if not self._refute(bound, middle_s):
                failed_s = middle_s

    def _refute(self, bound: SplitBound, limit_s: float) -> bool:
        """Whether prices refute a load, in several attempts: each knows the sets of the last.

        What is refuted becomes the bound.
        """
        for _ in range(MAX_ATTEMPTS):
            if bound.refutes(limit_s, lambda: self._is_over(BEFORE_MILP_SHARE)):
                self.bound_s, self.evidence = limit_s, "prices"
                return True
            if not bound.may_still_refute:
                return False
        return False

    def _ask_milp(self) -> None:
        left_s = self.max_seconds - (time.process_time() - self.started)
        if self._is_good() or left_s <= 0:
            return
        found = milp_split(
            self.groups,
            self.devices,
            max_seconds=left_s,
            least_s=self.bound_s,
            most_s=self.best_s * (1 + 1e-9),
            relative_gap=self.target_gap / 2,
        )
        if found.assignment is not None and fits(self.groups, self.devices, found.assignment):
            self._keep(found.assignment)
        if found.lower_bound_s > self.bound_s:
            self.bound_s = min(found.lower_bound_s, self.best_s)
            self.evidence = "integer programme"

    def _result(self) -> GraphSplit:
        assert self.best is not None
        assignment = tuple(int(self.best[group]) for group in self.node_group)
        load_s = max_load(self.graph, assignment)
        bound_s = min(self.bound_s, load_s)
        certificate = self._certificate(load_s, bound_s)
        return GraphSplit(assignment, load_s, bound_s, self.evidence, certificate)

    def _certificate(self, load_s: float, bound_s: float) -> SplitCertificate:
        claimed = SplitCertificate(max_load_s=load_s, lower_bound_s=bound_s, evidence=self.evidence)
        if self.bound is None or self.bound.refutation is None:
            return claimed
        proof, states = self.bound.refutation, self.bound.states
        return claimed.changed(
            limit_s=proof.limit_s,
            prices=tuple(proof.value.tolist()),
            cpu_worth=proof.cpu_worth,
            order=tuple(states.order.tolist()),
            ignored_s=states.ignored_s,
        )

    def _checked(self, known: Sequence[int]) -> Integers:
        problems = assignment_problems(self.graph, known)
        if problems:
            raise HeterpsError(f"the known split of {self.graph.name}: {'; '.join(problems)}")
        start = np.zeros(self.groups.num_groups, np.int64)
        start[self.node_group] = known
        return start

    def _first_split(self) -> Integers:
        start = first_split(self.groups, self.devices)
        return start if fits(self.groups, self.devices, start) else self._first_split_by_milp()

    def _first_split_by_milp(self) -> Integers:
        left_s = self.max_seconds - (time.process_time() - self.started)
        found = milp_split(self.groups, self.devices, max_seconds=left_s, relative_gap=1.0)
        if found.assignment is not None and fits(self.groups, self.devices, found.assignment):
            return found.assignment
        group = int(np.argmax(self.groups.memory_bytes))
        node = self.graph.nodes[int(np.flatnonzero(self.node_group == group)[0])]
        reason = "no split fits" if math.isinf(found.lower_bound_s) else "no split that fits found"
        raise InfeasibleError(
            f"{self.graph.name}: {reason}: {bytes_text(self.groups.memory_bytes.sum())} for "
            f"{self.devices.num_accelerators} accelerators of "
            f"{bytes_text(self.devices.memory_bytes)}; "
            f"the largest part that must be on one is that of node {node.name!r}, "
            f"{bytes_text(self.groups.memory_bytes[group])}"
        )
