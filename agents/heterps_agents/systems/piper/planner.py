"""Plans for Piper's cost: stages of a graph with tensor parallelism, replicas and recomputation.

A stage is a set of nodes on `degree * replicas` devices; its seconds of one sample are

    (compute + bytes over its cut edges, to and fro, / bandwidth) / replicas
    + 4 (replicas - 1) / replicas * parameter bytes / (batch size * bandwidth)

and its memory, with `in flight = ceil(replicas of it and of all stages behind / replicas)`,
is `in flight * a + b` summed over its nodes. The slowest stage sets the pace. Stages are cut off
sets of nodes that are closed under successors, back to front. For a target, a sweep finds the
fewest devices; bisection over the target does the rest. Which nodes recompute is a knapsack that is
solved greedily, as Piper does, and then improved: the answer is optimal up to that choice.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from heterps_agents.systems.piper.kernels import (
    GraphTables,
    Ways,
    choose,
    crossing_bytes,
    fewest_devices,
    stage_costs,
)
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.importers.piper import PiperGraph
from heterps_configs.units import bytes_text
from heterps_envs.arrays import Flags, Integers

MAX_SETS = 2000
MAX_COSTS = 60_000_000
_PRECISION = 1e-9


class PiperStage(NamedTuple):
    """Nodes (by index) on `tensor_parallel * replicas` devices.

    Attributes:
        configurations: Name of each node's configuration.
    """

    nodes: tuple[int, ...]
    tensor_parallel: int
    replicas: int
    configurations: tuple[str, ...]


class PiperAnswer(NamedTuple):
    """Stages front to back, and the seconds of one sample on the slowest."""

    stages: tuple[PiperStage, ...]
    seconds_per_sample: float


def plan_graph(graph: PiperGraph) -> PiperAnswer:
    """The plan with the least seconds per sample.

    Raises:
        InfeasibleError: No plan fits in the memory.
        HeterpsError: The graph has too many sets of nodes to split, or a node has more than two
            configurations of one degree.
    """
    tables = _tables(graph)
    sets, upper, lower = _pairs(graph)
    masks = np.array(
        [[(mask >> node) & 1 for node in range(len(graph.nodes))] for mask in sets], np.bool_
    )
    members = masks[upper] & ~masks[lower]
    most_in_flight = min(graph.batch_size, graph.num_devices)
    ways = _ways(graph, tables, most_in_flight)
    if len(members) * int(ways.first[-1]) > MAX_COSTS:
        raise HeterpsError(
            f"{len(sets)} sets of nodes are too many for {graph.num_devices} devices"
        )
    costs = stage_costs(tables, members, ways)
    finite = costs[np.isfinite(costs)]
    low, high = 0.0, float(finite.max(initial=0.0))
    best: PiperAnswer | None = None
    while best is None or high - low > _PRECISION * high:
        target_s = high if best is None else (low + high) / 2
        least, pairs, chosen = fewest_devices(costs, ways, upper, lower, most_in_flight, target_s)
        total = int(least[-1].argmin())
        if least[-1, total] > graph.num_devices:
            if best is None:
                raise _infeasible(graph)
            low = target_s
            continue
        found: list[tuple[int, int]] = []
        here = len(sets) - 1
        while here:
            pair, way = int(pairs[here, total]), int(chosen[here, total])
            found.append((pair, way))
            here, total = int(lower[pair]), total - int(ways.replicas[way])
        stages = _stages(graph, tables, members, ways, found)
        best = PiperAnswer(stages, seconds_per_sample(graph, stages))
        high = min(target_s, best.seconds_per_sample)
    return best


def seconds_per_sample(graph: PiperGraph, stages: Sequence[PiperStage]) -> float:
    """The cost of a plan, from the definition; infinite if a stage does not fit."""
    slowest = 0.0
    behind = sum(stage.replicas for stage in stages)
    if sum(stage.tensor_parallel * stage.replicas for stage in stages) > graph.num_devices:
        return math.inf
    for stage in stages:
        in_flight = -(-behind // stage.replicas)
        behind -= stage.replicas
        inside = set(stage.nodes)
        seconds = moved = synchronised = held = 0.0
        for node, name in zip(stage.nodes, stage.configurations, strict=True):
            (way,) = (
                entry
                for entry in graph.nodes[node].configurations[stage.tensor_parallel]
                if entry.name == name
            )
            seconds += way.seconds
            synchronised += way.parameter_bytes
            held += way.memory_bytes_in_flight * in_flight + way.memory_bytes
            for edge in graph.edges:
                if edge.target == node and edge.source not in inside:
                    moved += 2 * (edge.num_bytes + way.bytes_from[edge.source])
                if edge.source == node and edge.target not in inside:
                    moved += 2 * (edge.num_bytes + way.bytes_to[edge.target])
        if held > graph.memory_bytes * (1 + 1e-12):
            return math.inf
        replicas = stage.replicas
        sync = 4 * (replicas - 1) / replicas * synchronised / graph.batch_size
        total = (moved / replicas + sync) / graph.bandwidth_bytes_per_s + seconds / replicas
        slowest = max(slowest, total)
    return slowest


def _infeasible(graph: PiperGraph) -> InfeasibleError:
    """Names the node that fits on no device, or says that together they do not."""
    for node in graph.nodes:
        least = min(
            (
                way.memory_bytes_in_flight + way.memory_bytes
                for degree, ways in node.configurations.items()
                for way in ways
                if degree <= graph.num_devices
            ),
            default=math.inf,
        )
        if least > graph.memory_bytes:
            return InfeasibleError(
                f"node {node.name} needs at least {bytes_text(least)} on a device that has "
                f"{bytes_text(graph.memory_bytes)}"
            )
    return InfeasibleError(
        f"no split of the {len(graph.nodes)} nodes fits on {graph.num_devices} devices of "
        f"{bytes_text(graph.memory_bytes)}"
    )


def _pairs(graph: PiperGraph) -> tuple[list[int], Integers, Integers]:
    """All sets of nodes closed under successors, smallest first, and every pair of nested ones."""
    num_nodes = len(graph.nodes)
    behind = [0] * num_nodes
    for edge in graph.edges:
        behind[edge.source] |= 1 << edge.target
    known = {0}
    waiting = [0]
    for mask in waiting:
        for node in range(num_nodes):
            grown = mask | 1 << node
            if grown not in known and behind[node] & ~mask == 0:
                known.add(grown)
                waiting.append(grown)
        if len(known) > MAX_SETS:
            raise HeterpsError(f"the graph has more than {MAX_SETS} sets of nodes to cut off")
    sets = sorted(known, key=lambda mask: (mask.bit_count(), mask))
    nested = [
        (upper, lower)
        for upper, outer in enumerate(sets)
        for lower, inner in enumerate(sets[:upper])
        if inner & ~outer == 0
    ]
    pairs = np.array(nested, np.int64)
    return sets, pairs[:, 0].copy(), pairs[:, 1].copy()


def _ways(graph: PiperGraph, tables: GraphTables, most_in_flight: int) -> Ways:
    listed = [
        (index, replicas, int(degree) * replicas)
        for index, degree in enumerate(tables.degrees)
        for replicas in range(1, most_in_flight + 1)
        if graph.batch_size % replicas == 0 and degree * replicas <= graph.num_devices
    ]
    rounds = [-(-most_in_flight // replicas) for _, replicas, _ in listed]
    degree, replicas, devices = (np.array(column, np.int64) for column in zip(*listed, strict=True))
    return Ways(degree, replicas, devices, np.concatenate(([0], np.cumsum(rounds))))


def _tables(graph: PiperGraph) -> GraphTables:
    degrees = sorted({degree for node in graph.nodes for degree in node.configurations})
    shape = (len(graph.nodes), len(degrees), 2)
    allowed = np.zeros(shape[:2], np.bool_)
    seconds, parameters, flight, held = (np.zeros(shape) for _ in range(4))
    source_bytes, target_bytes = (np.zeros((len(graph.edges), len(degrees), 2)) for _ in range(2))
    for node, entry in enumerate(graph.nodes):
        for column, degree in enumerate(degrees):
            listed = entry.configurations.get(degree, ())
            if len(listed) > 2:
                raise HeterpsError(
                    f"node {entry.name}: at most two configurations of degree {degree}, "
                    f"got {len(listed)}"
                )
            allowed[node, column] = bool(listed)
            for index in range(2 if listed else 0):
                way = listed[min(index, len(listed) - 1)]
                place = node, column, index
                seconds[place], parameters[place] = way.seconds, way.parameter_bytes
                flight[place], held[place] = way.memory_bytes_in_flight, way.memory_bytes
                for number, edge in enumerate(graph.edges):
                    if edge.source == node:
                        extra = way.bytes_to[edge.target]
                        source_bytes[number, column, index] = 2 * (edge.num_bytes + extra)
                    if edge.target == node:
                        extra = way.bytes_from[edge.source]
                        target_bytes[number, column, index] = 2 * (edge.num_bytes + extra)
    return GraphTables(
        np.array(degrees, np.int64),
        allowed,
        seconds,
        parameters,
        flight,
        held,
        np.array([edge.source for edge in graph.edges], np.int64),
        np.array([edge.target for edge in graph.edges], np.int64),
        source_bytes,
        target_bytes,
        graph.memory_bytes,
        graph.bandwidth_bytes_per_s,
        graph.batch_size,
    )


def _stages(
    graph: PiperGraph,
    tables: GraphTables,
    members: Flags,
    ways: Ways,
    found: Sequence[tuple[int, int]],
) -> tuple[PiperStage, ...]:
    """The stages of a way back through the sweep, which starts at the front one."""
    behind = sum(int(ways.replicas[way]) for _, way in found)
    stages = []
    for pair, way in found:
        degree, replicas = int(ways.degree[way]), int(ways.replicas[way])
        chosen = np.zeros(len(graph.nodes), np.int64)
        crossing = crossing_bytes(tables, members[pair], degree)
        in_flight = -(-behind // replicas)
        choose(tables, members[pair], crossing, degree, replicas, in_flight, chosen)
        behind -= replicas
        nodes = tuple(int(node) for node in np.flatnonzero(members[pair]))
        width = int(tables.degrees[degree])
        listed = [graph.nodes[node].configurations[width] for node in nodes]
        names = tuple(
            ways_of[min(int(chosen[node]), len(ways_of) - 1)].name
            for node, ways_of in zip(nodes, listed, strict=True)
        )
        stages.append(PiperStage(nodes, width, replicas, names))
    return tuple(stages)
