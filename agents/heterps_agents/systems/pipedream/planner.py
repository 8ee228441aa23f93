"""Pipelines with replicated stages on machines of machines, as PipeDream's optimizer has them.

A cluster has levels: `units[0]` accelerators make a machine, `units[1]` machines a rack, and so on.
At each level a pipeline is a chain of ideals of the graph; a stage on r units of the level below
takes

    (seconds on one unit + 4 (r - 1) parameter bytes / (bandwidth r)) / r

where one unit runs the best pipeline of its own level. Activations cost nothing. The first stage of
a level divides the bytes term by the number of units of the level below, later stages do not: this
is the published program's formula, and comparing needs the same one. The slowest stage counts.
Units may stay idle. Harlap et al., "PipeDream: Fast and efficient pipeline parallel DNN training",
2018; here by a dynamic programme over all ideals (which contain the program's antichain states)
after groups without seconds and bytes were joined to a neighbour.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_agents.splits.contiguous import SHARES
from heterps_agents.splits.convex_groups import ConvexGroups, convex_groups
from heterps_agents.splits.ideals import IdealTables, groups_of, ideal_tables
from heterps_agents.systems.pipedream.kernels import contained, split_level, split_only_level
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats
from heterps_envs.graphs.operators import graph_arrays

# Triples of ideals take about a second with so many and two levels.
MAX_IDEALS = 800
# One level looks at pairs of ideals only, and leaves out most of them.
MAX_IDEALS_ONE_LEVEL = 60_000


@dataclass(frozen=True)
class PipelineStage:
    """One stage.

    Attributes:
        nodes: Indices of its nodes.
        replicas: Units of its level that run it.
        stages: How each of these units splits it; empty at the lowest level.
    """

    nodes: tuple[int, ...]
    replicas: int
    stages: tuple[PipelineStage, ...] = ()


@dataclass(frozen=True)
class HierarchicalPipeline:
    """A pipeline of the highest level and how good it is.

    Attributes:
        stage_time_s: Seconds of the slowest stage.
        bound_s: No pipeline of this kind has a faster slowest stage.
        stages: Of the highest level, front to back.
        num_ideals: How many ideals were looked at; None: too many. Then the pipeline is the better
            of two: the best along one execution order, and the best that replicates no machines.
    """

    stage_time_s: float
    bound_s: float
    stages: tuple[PipelineStage, ...]
    num_ideals: int | None

    @property
    def proven(self) -> bool:
        """Whether no pipeline of this kind is better."""
        return self.bound_s >= self.stage_time_s


@dataclass(frozen=True)
class _Level:
    """Best pipelines of one level between ideals; see `split_level`."""

    value: Floats
    before: NDArray[np.int32]
    replicas: NDArray[np.int32]
    units: int

    @property
    def time_s(self) -> float:
        """Seconds of the slowest stage from nothing to everything."""
        return float(self.value[0, -1, self.units])


def split_hierarchical(
    graph: OperatorGraph,
    units: Sequence[int],
    bandwidth_bytes_per_s: Sequence[float],
    straight: bool = False,
    max_ideals: int | None = None,
) -> HierarchicalPipeline:
    """The pipeline with the fastest slowest stage.

    Args:
        graph: Uses the seconds and parameter bytes of the nodes, nothing else.
        units: Units of each level, the lowest first.
        bandwidth_bytes_per_s: Of each level, between its units.
        straight: No replicas.
        max_ideals: Limit of the exact search; None: what takes about a second.

    Raises:
        HeterpsError: The levels do not fit together, or a node runs on no accelerator.
    """
    if len(units) != len(bandwidth_bytes_per_s) or not units:
        raise HeterpsError(
            f"{len(units)} levels of units and {len(bandwidth_bytes_per_s)} bandwidths: give one"
            " bandwidth for each level"
        )
    if min(units) < 1 or min(bandwidth_bytes_per_s) <= 0:
        raise HeterpsError("units of a level and its bandwidth must be positive")
    groups = _groups(graph)
    if max_ideals is None:
        max_ideals = MAX_IDEALS_ONE_LEVEL if len(units) == 1 else MAX_IDEALS
    tables = ideal_tables(groups, max_ideals)
    used = tables
    if used is None or len(units) == 1:
        used = ideal_tables(groups, len(groups.cpu_s) + 1, linear=True)
        assert used is not None
    levels = _solve(used, units, bandwidth_bytes_per_s, straight)
    bound_s = min(levels[-1].time_s, float(used.accelerator_s[-1]) / math.prod(units))
    time_s = levels[-1].time_s
    stages = _trace(levels, groups, used, len(units) - 1, 0, len(used.words) - 1)
    wide = tables if len(units) == 1 or tables else ideal_tables(groups, MAX_IDEALS_ONE_LEVEL)
    if wide is not None and used is not tables:
        flat = _solve_flat(wide, units, bandwidth_bytes_per_s[0], straight, (bound_s, time_s))
        if flat:
            time_s = flat.time_s
            stages = _nested(_trace([flat], groups, wide, 0, 0, len(wide.words) - 1), units)
    return HierarchicalPipeline(
        stage_time_s=time_s,
        bound_s=bound_s if tables is None else time_s,
        stages=stages,
        num_ideals=None if tables is None else len(tables.words),
    )


def _groups(graph: OperatorGraph) -> ConvexGroups:
    """Groups of a graph without communication, with parameter bytes as their second weight."""
    lame = next((node.name for node in graph.nodes if not node.supported_on_accelerator), None)
    if lame is not None:
        raise HeterpsError(f"{graph.name}: {lame} does not run on accelerators")
    # Parameter bytes take the place of CPU seconds: the other weight that a group may have.
    parameter_bytes = np.array([node.parameter_bytes for node in graph.nodes], dtype=float)
    nothing = np.zeros(len(graph.nodes))
    return convex_groups(
        graph_arrays(graph)._replace(
            cpu_s=parameter_bytes, communication_s=nothing, memory_bytes=nothing
        )
    )


def _solve(
    tables: IdealTables, units: Sequence[int], bandwidths: Sequence[float], straight: bool
) -> list[_Level]:
    """Each level over the one below; only the highest knows where its pipeline starts."""
    holds = contained(tables.words)
    unit_s = tables.accelerator_s[None, :] - tables.accelerator_s[:, None]
    unit_s = np.where(holds, unit_s, math.inf)
    levels: list[_Level] = []
    units_below = 1
    for index, (count, bandwidth) in enumerate(zip(units, bandwidths, strict=True)):
        sync_s = _sync_s(count, bandwidth)
        is_highest = index == len(units) - 1
        value, before, replicas = split_level(
            unit_s,
            tables.cpu_s,
            holds,
            1 if is_highest else len(unit_s),
            count,
            1 if straight else count,
            sync_s / units_below,
            sync_s,
        )
        levels.append(_Level(value, before, replicas, count))
        unit_s, units_below = np.ascontiguousarray(value[:, :, count]), count
    return levels


def _solve_flat(
    tables: IdealTables,
    units: Sequence[int],
    bandwidth: float,
    straight: bool,
    between_s: tuple[float, float],
) -> _Level | None:
    """The best pipeline of single devices whose replicas stay inside a machine.

    Exact for one level. Only looks between a lower bound and a time that is already had; None:
    there is none.
    """
    num_units, bound_s, known_s = math.prod(units), *between_s
    sync_s = _sync_s(units[0], bandwidth)
    for share in SHARES:
        upper_s = bound_s + share * (known_s - bound_s)
        most_replicas = 1 if straight else units[0]
        level = split_only_level(tables, num_units, units[0], most_replicas, sync_s, upper_s)
        if level[0][0, -1].min() < math.inf:
            return _Level(*level, int(level[0][0, -1].argmin()))
    return None


def _nested(stages: Sequence[PipelineStage], units: Sequence[int]) -> tuple[PipelineStage, ...]:
    """Stages of single devices as the pipelines of machines, of racks, and so on."""
    first_unit = np.cumsum([0, *(stage.replicas for stage in stages)])[:-1]
    for size in units[:-1]:
        machine_of = first_unit // size
        machines = [
            [stage for stage, place in zip(stages, machine_of, strict=True) if place == machine]
            for machine in np.unique(machine_of)
        ]
        stages = [
            PipelineStage(
                nodes=tuple(sorted(node for stage in inside for node in stage.nodes)),
                replicas=1,
                stages=tuple(inside),
            )
            for inside in machines
        ]
        first_unit = np.unique(machine_of)
    return tuple(stages)


def _sync_s(count: int, bandwidth: float) -> Floats:
    """(count + 1,) seconds for each parameter byte to keep so many replicas equal."""
    replicas = np.arange(1, count + 1)
    return np.concatenate([[0.0], 4 * (replicas - 1) / (bandwidth * replicas)])


def _trace(
    levels: Sequence[_Level],
    groups: ConvexGroups,
    tables: IdealTables,
    index: int,
    start: int,
    end: int,
) -> tuple[PipelineStage, ...]:
    """Stages of one level between two ideals, and what is inside them."""
    level, units = levels[index], levels[index].units
    stages: list[PipelineStage] = []
    while end != start:
        cut = int(level.before[start, end, units])
        replicas = int(level.replicas[start, end, units])
        first = start if cut < 0 else cut
        count = len(groups.cpu_s)
        inside = groups_of(tables.words[end], count) & ~groups_of(tables.words[first], count)
        stages.append(
            PipelineStage(
                nodes=tuple(np.flatnonzero(inside[groups.group_of_node]).tolist()),
                replicas=replicas,
                stages=_trace(levels, groups, tables, index - 1, first, end) if index else (),
            )
        )
        end, units = first, units - replicas
    return tuple(reversed(stages))
