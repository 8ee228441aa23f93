"""Is there a contiguous split below a load? All rows of devices, in plain NumPy, no solver's code.

A split is contiguous where the devices can be put in a row that the forward pass never goes back.
Then what the first devices of the row hold is an ideal: with a node, it has all that comes before
it. So the rows are chains of ideals, from nothing to everything, and a device holds what its ideal
has more than the one before. For every ideal, smallest first, the fewest accelerators are noted
that hold it within the load, for each number of CPUs. (Tarnawski et al., NeurIPS 2020, section 4.)
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from heterps_configs.documents.operator_graph import OperatorGraph, execution_order
from heterps_envs.arrays import Floats, Integers
from heterps_envs.certificates.plain_groups import MEMORY_TOLERANCE, plain_split

ROWS = 128
# Pairs of ideals times what is compared of them: some ten seconds.
MAX_WORK = 1e11
NEVER = 1 << 20
# Work that a CPU does for free must not make products infinite.
FASTEST = 1e100


def forward_pairs(graph: OperatorGraph) -> list[tuple[int, int]]:
    """Pairs (earlier node, later node) of the forward pass.

    A backward node follows its class. Where a class has no forward nodes, its backward edges count,
    turned round.
    """
    nodes = graph.nodes
    forward_classes = {node.color_class for node in nodes if not node.is_backward}

    def follows(index: int) -> bool:
        color = nodes[index].color_class
        return color is not None and color in forward_classes

    pairs = []
    for producer, consumer in graph.edges:
        if not nodes[consumer].is_backward:
            pairs.append((producer, consumer))
        elif nodes[producer].is_backward and not (follows(producer) and follows(consumer)):
            pairs.append((consumer, producer))
    return pairs


def is_in_row(graph: OperatorGraph, assignment: Sequence[int]) -> bool:
    """Whether the devices can be put in a row that the forward pass never goes back."""
    between = {(assignment[a], assignment[b]) for a, b in forward_pairs(graph)}
    between = {(a, b) for a, b in between if a != b}
    num_devices = graph.num_accelerators + graph.num_cpus
    return len(execution_order(num_devices, between)) == num_devices


def no_row_below(graph: OperatorGraph, below_s: float, max_ideals: int) -> bool | None:
    """Whether no contiguous split keeps every load below some seconds.

    Args:
        graph: With its devices.
        below_s: Seconds.
        max_ideals: Give up where there are more.

    Returns:
        None where that would take too long.
    """
    units = _units(graph)
    few = _without_idle(units)
    if len(few.before) < len(units.before) and _no_row(graph, few, below_s, max_ideals):
        return True
    return _no_row(graph, units, below_s, max_ideals)


def _no_row(graph: OperatorGraph, units: _Units, below_s: float, max_ideals: int) -> bool | None:
    ideals = _ideals(units.before, max_ideals)
    return None if ideals is None else _Rows(graph, units, ideals, below_s).none_reaches_the_end()


class _Units(NamedTuple):
    """U units of nodes that no contiguous split parts: `before[u]` has a bit for what u waits for.

    `values` is (U, 5): accelerator seconds, CPU seconds, bytes, and whether the unit cannot run on
    an accelerator, or on a CPU (its seconds there are 0 then). `nets` are units and seconds.
    """

    before: list[int]
    values: Floats
    nets: list[tuple[list[int], float]]


def _units(graph: OperatorGraph) -> _Units:
    """Groups, and all on a circle of the forward pass together."""
    split = plain_split(graph)
    group_of = {node: group for group, nodes in enumerate(split.members) for node in nodes}
    pairs = [(group_of[a], group_of[b]) for a, b in forward_pairs(graph)]
    size = len(split.members)
    ends = np.array(pairs, np.int64).reshape(-1, 2)
    links = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(size, size))
    count, unit = connected_components(links, directed=True, connection="strong")
    before = [0] * count
    for a, b in pairs:
        if unit[a] != unit[b]:
            before[unit[b]] |= 1 << int(unit[a])
    values = np.zeros((count, 5))
    for group, nodes in enumerate(split.members):
        on_accelerator, on_cpu = split.accelerator_s[group], split.cpu_s[group]
        values[unit[group]] += (
            on_accelerator if on_accelerator < math.inf else 0.0,
            on_cpu if on_cpu < math.inf else 0.0,
            math.fsum(graph.nodes[node].memory_bytes for node in nodes),
            on_accelerator == math.inf,
            on_cpu == math.inf,
        )
    seconds: defaultdict[frozenset[int], float] = defaultdict(float)
    for net in split.nets:
        seconds[frozenset(int(unit[group]) for group in net.members)] += net.seconds
    nets = [(sorted(units), net_s) for units, net_s in seconds.items() if len(units) > 1]
    return _Units(before, values, nets)


def _without_idle(units: _Units) -> _Units:
    """Leaves out units without work that are in at most one net.

    Whatever split there is, no load grows by that, and the rest is still in a row: no split of the
    rest below a load means no split of all. Few units have far fewer ideals.
    """
    size = len(units.before)
    num_nets = [sum(unit in members for members, _ in units.nets) for unit in range(size)]
    keep = [u for u in range(size) if units.values[u, :2].any() or num_nets[u] > 1]
    edges = [(a, b) for b in range(size) for a in range(size) if units.before[b] >> a & 1]
    behind = [0] * size  # bits of all that comes before, also through others
    for unit in execution_order(size, edges):
        for earlier in range(size):
            if units.before[unit] >> earlier & 1:
                behind[unit] |= behind[earlier] | 1 << earlier
    before = [sum(1 << new for new, old in enumerate(keep) if behind[u] >> old & 1) for u in keep]
    number = {old: new for new, old in enumerate(keep)}
    nets = [([number[u] for u in members if u in number], net_s) for members, net_s in units.nets]
    return _Units(before, units.values[keep], [net for net in nets if len(net[0]) > 1])


def _ideals(before: Sequence[int], most: int) -> list[int] | None:
    """All ideals, as bits, smallest first; None where there are more than `most`."""
    ideals, layer = [0], {0}
    while layer:
        layer = {
            ideal | 1 << unit
            for ideal in layer
            for unit, needs in enumerate(before)
            if not ideal >> unit & 1 and needs & ~ideal == 0
        }
        ideals += layer
        if len(ideals) > most:
            return None
    return ideals


class _Rows:
    """Chains of ideals whose devices all stay below a load.

    With n(I) members of a net in the ideal I, the device between I and J pays the net unless
    n(I) = n(J), or n(I) = 0 and J has all members. Both are products of 0-1 matrices, so that one
    matrix product has the seconds of many pairs.
    """

    def __init__(
        self, graph: OperatorGraph, units: _Units, ideals: Sequence[int], below_s: float
    ) -> None:
        self.graph, self.below_s = graph, below_s
        size = len(units.before)
        self.has = np.array([[ideal >> u & 1 for u in range(size)] for ideal in ideals], np.float32)
        self.sums = self.has.astype(float) @ units.values
        self.all_net_s = math.fsum(net_s for _, net_s in units.nets)
        here, there = list[Floats](), list[Floats]()
        for members, net_s in units.nets:
            inside = self.has[:, members].sum(axis=1)
            for number in range(len(members) + 1):
                is_it = (inside == number).astype(float)
                here.append(is_it)
                there.append(net_s * is_it)
            here.append((inside == 0).astype(float))
            there.append(net_s * (inside == len(members)))
        empty = np.zeros((len(ideals), 0))
        self.here = np.stack(here, axis=1) if here else empty
        self.there = np.stack(there, axis=1) if there else empty
        room = graph.accelerator_memory_bytes
        self.room = math.inf if room is None else room * (1 + MEMORY_TOLERANCE)
        work, slow = units.values[:, 0], units.values[:, 1]
        useful = (work > 0) & (units.values[:, 4] == 0)
        # Accelerator seconds that a CPU does in a second, at most.
        with np.errstate(divide="ignore"):
            self.cpu_speed = min(FASTEST, float((work[useful] / slow[useful]).max(initial=0.0)))

    def none_reaches_the_end(self) -> bool | None:
        """None where the pairs of ideals are too many."""
        graph = self.graph
        fewest = np.full((len(self.has), graph.num_cpus + 1), NEVER)
        fewest[0, 0] = 0
        sizes = self.has.sum(axis=1)
        work = 0.0
        for size in np.unique(sizes)[:-1]:
            alive = np.flatnonzero((sizes == size) & self._can_end(fewest))
            for first in range(0, len(alive), ROWS):
                rows = alive[first : first + ROWS]
                columns = self._candidates(rows, int(np.searchsorted(sizes, size, side="right")))
                work += len(rows) * len(columns) * (self.here.shape[1] + self.has.shape[1])
                if work > MAX_WORK:
                    return None
                self._extend(fewest, rows, columns)
        return bool(fewest[-1].min() > graph.num_accelerators)

    def _can_end(self, fewest: Integers) -> NDArray[np.bool_]:
        """(I,) whether the devices that are left could do the rest if it were divisible."""
        graph = self.graph
        rest_s = self.sums[-1, 0] - self.sums[:, 0]
        accelerators = np.maximum(graph.num_accelerators - fewest, 0)
        is_known = fewest <= graph.num_accelerators
        cpus = np.arange(graph.num_cpus, -1, -1)
        could_s = (accelerators + cpus * self.cpu_speed) * self.below_s * (1 + MEMORY_TOLERANCE)
        is_able: NDArray[np.bool_] = (is_known & (could_s >= rest_s[:, None])).any(axis=1)
        return is_able

    def _candidates(self, rows: Integers, first: int) -> Integers:
        """Larger ideals that are not too far ahead of all rows."""
        ahead = self.sums[first:, :2] - self.sums[rows, :2].max(axis=0)
        if self.graph.num_cpus:
            is_near = ahead.min(axis=1) < self.below_s
        else:
            is_near = ahead[:, 0] < self.below_s
        return first + np.flatnonzero(is_near)

    def _extend(self, fewest: Integers, rows: Integers, columns: Integers) -> None:
        """Puts one more device behind every row."""
        graph = self.graph
        is_ahead = self.has[rows] @ (1 - self.has[columns]).T == 0
        more = self.sums[columns][None] - self.sums[rows][:, None]
        border_s = self.all_net_s - self.here[rows] @ self.there[columns].T
        on_accelerator = (
            is_ahead
            & (more[:, :, 0] + border_s < self.below_s)
            & (more[:, :, 2] <= self.room)
            & (more[:, :, 3] == 0)
        )
        on_cpu = is_ahead & (more[:, :, 1] < self.below_s) & (more[:, :, 4] == 0)
        for cpus in range(graph.num_cpus + 1):
            used = fewest[rows, cpus][:, None]
            found = np.where(on_accelerator, used + 1, NEVER).min(axis=0)
            fewest[columns, cpus] = np.minimum(fewest[columns, cpus], found)
            if cpus < graph.num_cpus:
                found = np.where(on_cpu, used, NEVER).min(axis=0)
                fewest[columns, cpus + 1] = np.minimum(fewest[columns, cpus + 1], found)
