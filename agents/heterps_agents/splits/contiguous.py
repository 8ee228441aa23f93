"""Contiguous splits of an operator graph with the least largest load, with a proof or a bound.

Exact: a dynamic programme over the ideals of the forward graph (Tarnawski et al., NeurIPS 2020)
after groups that must or may move together became one (`convex_groups`). A first answer comes from
the same programme along one execution order, where ideals are prefixes; then only what can be
better is looked at. Graphs with more ideals than `max_ideals` keep that first answer and a lower
bound. "Contiguous" means: devices can be put in a row such that the forward pass never goes back.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from heterps_agents.splits.contiguous_kernels import sweep
from heterps_agents.splits.convex_groups import ConvexGroups, convex_groups
from heterps_agents.splits.ideals import IdealTables, groups_of, ideal_tables
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.errors import InfeasibleError
from heterps_configs.units import bytes_text
from heterps_envs.arrays import Integers
from heterps_envs.certificates.split import SplitCertificate
from heterps_envs.graphs.operators import MEMORY_TOLERANCE, graph_arrays, max_load

# With this many ideals the pairs of ideals take a few seconds.
MAX_IDEALS = 60_000
# Few pairs of ideals matter when the guess is hardly above the optimum, and many when it is far
# above. So wide graphs are searched for something good first, from the lower bound upwards.
_MANY_IDEALS = 4_000
SHARES = (0.125, 0.25, 0.5, 1.0)
_ROUNDING = 1e-12
# Work that a CPU does for free must not make bounds infinite.
_FASTEST_CPU = 1e9


@dataclass(frozen=True)
class ContiguousSplit:
    """A contiguous split and how good it is.

    Attributes:
        assignment: Device of each node: accelerators in pipeline order, then CPUs.
        max_load_s: Seconds of the most loaded device.
        bound_s: No contiguous split has a smaller largest load.
        linear_max_load_s: Of the first answer, along one execution order; inf where memory let
            none fit.
        num_ideals: How many ideals were looked at; None: more than the limit.
        certificate: What `heterps_envs.certificates.split` re-checks the split and its bound by.
    """

    assignment: tuple[int, ...]
    max_load_s: float
    bound_s: float
    linear_max_load_s: float
    num_ideals: int | None
    certificate: SplitCertificate

    @property
    def proven(self) -> bool:
        """Whether no contiguous split is better."""
        return self.bound_s >= self.max_load_s


def split_contiguous(graph: OperatorGraph, max_ideals: int = MAX_IDEALS) -> ContiguousSplit:
    """The contiguous split with the least largest load.

    Args:
        graph: The graph with its devices.
        max_ideals: Limit of the exact search.

    Raises:
        InfeasibleError: No contiguous split fits into memory, or none was found and the graph is
            too wide to know.
        HeterpsError: The graph has an edge from a backward to a forward node.
    """
    arrays = graph_arrays(graph)
    groups = convex_groups(arrays)
    found = _search(graph, groups, max_ideals)
    if found.joining_matters:
        parted = convex_groups(arrays, join_idle=False)
        again = _search(graph, parted, max_ideals)
        if again.num_ideals is not None or found.best is None:
            groups, found = parted, again
    if found.best is None:
        raise InfeasibleError(f"{graph.name}: {_what_does_not_fit(graph, groups, found)}")
    assignment = tuple(found.best.device_of_group[groups.group_of_node].tolist())
    load_s = max_load(graph, assignment)
    is_exact = found.num_ideals is not None and not found.joining_matters
    bound_s = load_s if is_exact else min(load_s, balanced_s(graph, groups))
    return ContiguousSplit(
        assignment=assignment,
        max_load_s=load_s,
        bound_s=bound_s,
        linear_max_load_s=found.linear_s,
        num_ideals=found.num_ideals,
        certificate=SplitCertificate(
            max_load_s=load_s,
            lower_bound_s=bound_s,
            is_contiguous=True,
            evidence="ideals" if is_exact else "balance",
        ),
    )


class _Chain(NamedTuple):
    """The best chain of ideals of a sweep: its largest load and the device of each group."""

    load_s: float
    device_of_group: Integers


class _Found(NamedTuple):
    """What a search found.

    `num_ideals` None: only along one execution order. `joining_matters`: with groups parted that
    were joined, memory might allow more.
    """

    best: _Chain | None
    linear_s: float
    num_ideals: int | None
    joining_matters: bool


def _search(graph: OperatorGraph, groups: ConvexGroups, max_ideals: int) -> _Found:
    """First along one execution order, then everywhere below the load that this gave."""
    count = len(groups.cpu_s)
    prefixes = ideal_tables(groups, count + 1, linear=True)
    assert prefixes is not None
    all_s = groups.accelerator_s.sum() + groups.cpu_s.sum() + groups.net_s.sum()
    upper_s = float(1 + 2 * all_s)
    linear = _best_chain(graph, groups, prefixes, upper_s)
    linear_s = linear.load_s if linear else math.inf
    tables = ideal_tables(groups, max_ideals)
    joined = groups.memory_moved_bytes > 0
    if tables is None:
        return _Found(linear, linear_s, None, joined and linear is None)
    upper_s = min(upper_s, linear_s)
    lower_s = min(upper_s, balanced_s(graph, groups))
    best = linear
    for share in SHARES if len(tables.words) > _MANY_IDEALS else SHARES[-1:]:
        better = _best_chain(graph, groups, tables, lower_s + share * (upper_s - lower_s))
        if better:
            best = better
            break
    joining_matters = False
    if joined and graph.accelerator_memory_bytes is not None:
        roomy = graph.changed(accelerator_memory_bytes=None)
        limit_s = best.load_s * (1 - _ROUNDING) if best else upper_s
        joining_matters = _best_chain(roomy, groups, tables, limit_s) is not None
    return _Found(best, linear_s, len(tables.words), joining_matters)


def _best_chain(
    graph: OperatorGraph, groups: ConvexGroups, tables: IdealTables, upper_s: float
) -> _Chain | None:
    """The chain with the least largest load below `upper_s`."""
    capacity = graph.accelerator_memory_bytes
    memory_bytes = math.inf if capacity is None else capacity * (1 + MEMORY_TOLERANCE)
    num_accelerators, num_cpus = graph.num_accelerators, graph.num_cpus
    speed = _cpu_speed(groups) if num_cpus else 0.0
    value, origin = sweep(tables, num_accelerators, num_cpus, memory_bytes, speed, upper_s)
    state = int(value[-1].argmin())
    load_s = float(value[-1, state])
    if load_s == math.inf:
        return None
    ends = [(len(tables.words) - 1, state)]
    while ends[-1][0] > 0:
        index, state = ends[-1]
        before = int(origin[index, state])
        step = 1 if before >= 0 else num_accelerators + 1
        ends.append((before if before >= 0 else -1 - before, state - step))
    device_of_group = np.empty(len(groups.cpu_s), dtype=np.int64)
    held = np.zeros(len(groups.cpu_s), dtype=bool)
    accelerator, cpu = 0, num_accelerators
    for (_, before), (index, after) in pairwise(reversed(ends)):
        now = groups_of(tables.words[index], len(held))
        on_accelerator = after == before + 1 and int(origin[index, after]) >= 0
        device_of_group[now & ~held] = accelerator if on_accelerator else cpu
        accelerator, cpu = accelerator + on_accelerator, cpu + (not on_accelerator)
        held = now
    return _Chain(load_s, device_of_group)


def _cpu_speed(groups: ConvexGroups) -> float:
    """Accelerator seconds of work that a CPU does in one second, at most."""
    works = groups.accelerator_s > 0
    slowest = groups.accelerator_s[works] / np.maximum(groups.cpu_s[works], 1 / _FASTEST_CPU)
    return min(_FASTEST_CPU, float(slowest.max(initial=0.0)))


def balanced_s(graph: OperatorGraph, groups: ConvexGroups) -> float:
    """A lower bound on the largest load of any split, contiguous or not, without nets.

    Prices for a second of an accelerator and of a CPU that together cost one: every group costs at
    least its cheaper place (the dual of splitting groups freely, as in
    `heterps_envs.closed_form.bounds`). The dearest group alone is a bound too.
    """
    on_accelerator = np.where(groups.only_cpu > 0, math.inf, groups.accelerator_s)
    on_cpu = np.where(groups.only_accelerator > 0, math.inf, groups.cpu_s)
    if not graph.num_cpus:
        on_cpu = np.full(len(on_cpu), math.inf)
    alone = float(np.minimum(on_accelerator, on_cpu).max())

    def cost(share: float) -> float:
        """Cost of everything when all accelerators together cost `share`."""
        accelerators = share / graph.num_accelerators
        cpus = (1 - share) / max(1, graph.num_cpus)
        with np.errstate(invalid="ignore"):
            paid = np.fmin(accelerators * on_accelerator, cpus * on_cpu)
        return float(paid.sum())

    low, high = (0.0, 1.0) if graph.num_cpus else (1.0, 1.0)
    for _ in range(80):
        left, right = low + (high - low) / 3, high - (high - low) / 3
        low, high = (left, high) if cost(left) < cost(right) else (low, right)
    return max(alone, cost(low), cost(high))


def _what_does_not_fit(graph: OperatorGraph, groups: ConvexGroups, found: _Found) -> str:
    """Why there is no split, in words."""
    capacity = graph.accelerator_memory_bytes
    if capacity is not None and not graph.num_cpus:
        largest = float(groups.memory_bytes.max())
        if largest > capacity:
            nodes = np.flatnonzero(groups.group_of_node == groups.memory_bytes.argmax())
            return (
                f"{graph.nodes[nodes[0]].name} and what must be with it ({len(nodes)} nodes) takes"
                f" {bytes_text(largest)}, {bytes_text(largest - capacity)} more than an "
                f"accelerator has"
            )
        total, room = float(groups.memory_bytes.sum()), capacity * graph.num_accelerators
        if total > room:
            return (
                f"the nodes take {bytes_text(total)}, {bytes_text(total - room)} more than all"
                " accelerators"
            )
    if found.num_ideals is None:
        return (
            "no split along one execution order fits into memory, and there are too many ideals"
            " to look at all others"
        )
    return "no contiguous split fits into the memory of the accelerators"
