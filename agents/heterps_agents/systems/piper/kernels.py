"""The compiled half of the planner for Piper's cost: costs of stages, and devices for a target."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Flags, Floats, Integers
from heterps_envs.compiled import checked

# Devices of a target that cannot be met.
NEVER = 1 << 30


class GraphTables(NamedTuple):
    """N nodes with two configurations each (the same one twice where there is only one).

    D tensor-parallel degrees; E edges.

    Attributes:
        degrees: (D,) tensor-parallel degrees.
        allowed: (N, D) whether a node can run with a degree.
        seconds: (N, D, 2) of one sample.
        parameter_bytes: (N, D, 2) on each device.
        flight_bytes: (N, D, 2) memory for each micro-batch in flight.
        held_bytes: (N, D, 2) memory whatever is in flight.
        sources: (E,) node that an edge leaves.
        targets: (E,) node that it enters.
        source_bytes: (E, D, 2) to and fro over a crossing edge at its source, by configuration.
        target_bytes: (E, D, 2) the same at its target.
    """

    degrees: Integers
    allowed: Flags
    seconds: Floats
    parameter_bytes: Floats
    flight_bytes: Floats
    held_bytes: Floats
    sources: Integers
    targets: Integers
    source_bytes: Floats
    target_bytes: Floats
    memory_bytes: float
    bandwidth_bytes_per_s: float
    batch_size: int


class Ways(NamedTuple):
    """C ways to run a stage: tensor-parallel degree (by index) times replicas.

    Attributes:
        degree: (C,) index of the tensor-parallel degree.
        replicas: (C,) data-parallel replicas.
        devices: (C,) that both need.
        first: (C + 1,) where the costs of a way start, by `in flight - 1`.
    """

    degree: Integers
    replicas: Integers
    devices: Integers
    first: Integers


@checked
def crossing_bytes(tables: GraphTables, members: Flags, degree: int) -> Floats:
    """(N, 2) bytes that the nodes of a stage exchange with other stages, one sample."""
    found = np.zeros((len(members), 2))
    for edge in range(len(tables.sources)):
        source, target = tables.sources[edge], tables.targets[edge]
        if members[source] == members[target]:
            continue
        for configuration in range(2):
            if members[source]:
                found[source, configuration] += tables.source_bytes[edge, degree, configuration]
            else:
                found[target, configuration] += tables.target_bytes[edge, degree, configuration]
    return found


@checked
def choose(
    tables: GraphTables,
    members: Flags,
    crossing: Floats,
    degree: int,
    replicas: int,
    in_flight: int,
    chosen: Integers,
) -> float:
    """Seconds of one sample on a stage, and in `chosen` the configuration of every node.

    From the fastest configurations on, those switches are made that save most memory for their
    seconds, until the stage fits; then the dearest switches that were not needed are taken back.

    Returns:
        The seconds; inf if no choice fits, -1 if a node cannot run with that degree.
    """
    num_nodes = len(members)
    total, used, least_used = 0.0, 0.0, 0.0
    dearer = np.zeros(num_nodes)
    saved = np.zeros(num_nodes)
    ratio = np.full(num_nodes, np.inf)
    sync = 4 * (replicas - 1) / replicas / tables.batch_size
    for node in range(num_nodes):
        if not members[node]:
            continue
        if not tables.allowed[node, degree]:
            return -1.0
        costs = np.empty(2)
        needs = np.empty(2)
        for configuration in range(2):
            moved = crossing[node, configuration] / replicas
            moved += sync * tables.parameter_bytes[node, degree, configuration]
            costs[configuration] = (
                moved / tables.bandwidth_bytes_per_s
                + tables.seconds[node, degree, configuration] / replicas
            )
            needs[configuration] = (
                tables.flight_bytes[node, degree, configuration] * in_flight
                + tables.held_bytes[node, degree, configuration]
            )
        fast = 0 if costs[0] <= costs[1] else 1
        chosen[node] = fast
        total += costs[fast]
        used += needs[fast]
        least_used += needs.min()
        saved[node] = needs[fast] - needs[1 - fast]
        dearer[node] = costs[1 - fast] - costs[fast]
        if saved[node] > 0:
            ratio[node] = dearer[node] / saved[node]
    if least_used > tables.memory_bytes:
        return np.inf
    if used <= tables.memory_bytes:
        return total
    order = np.argsort(ratio)
    for node in order:
        if used <= tables.memory_bytes:
            break
        used -= saved[node]
        total += dearer[node]
        chosen[node] = 1 - chosen[node]
        ratio[node] = -1.0
    for node in np.argsort(-dearer):
        if ratio[node] == -1.0 and used + saved[node] <= tables.memory_bytes:
            used += saved[node]
            total -= dearer[node]
            chosen[node] = 1 - chosen[node]
            ratio[node] = 0.0
    return total


@checked
def stage_costs(tables: GraphTables, members: Flags, ways: Ways) -> Floats:
    """(P, ways.first[-1]) seconds of each of P sets of nodes, by way and micro-batches in flight.

    Never falling with the micro-batches in flight; inf where a stage does not fit.
    """
    costs = np.full((len(members), ways.first[-1]), np.inf)
    chosen = np.zeros(members.shape[1], np.int64)
    for row in range(len(members)):
        known_degree = -1
        crossing = np.zeros((members.shape[1], 2))
        for way in range(len(ways.degree)):
            degree = ways.degree[way]
            if degree != known_degree:
                crossing = crossing_bytes(tables, members[row], degree)
                known_degree = degree
            highest = 0.0
            for place in range(ways.first[way], ways.first[way + 1]):
                seconds = choose(
                    tables,
                    members[row],
                    crossing,
                    degree,
                    ways.replicas[way],
                    place - ways.first[way] + 1,
                    chosen,
                )
                if seconds < 0 or seconds == np.inf:
                    break
                highest = max(highest, seconds)
                costs[row, place] = highest
    return costs


@checked
def fewest_devices(
    costs: Floats,
    ways: Ways,
    upper: Integers,
    lower: Integers,
    most_in_flight: int,
    target_s: float,
) -> tuple[Integers, Integers, Integers]:
    """Devices that each set of nodes needs so that no stage takes longer than a target.

    Args:
        costs: See `stage_costs`.
        ways: Ways to run a stage.
        upper: (P,) set that a pair of sets fills up, ascending.
        lower: (P,) set that was there before; 0 is the empty one.
        most_in_flight: Largest sum of replicas.
        target_s: Largest seconds of a stage.

    Returns:
        (I, S + 1) devices by set and largest sum of replicas, and the pair and way behind it.
    """
    num_sets = upper[-1] + 1
    least = np.full((num_sets, most_in_flight + 1), NEVER)
    pairs = np.zeros((num_sets, most_in_flight + 1), np.int64)
    chosen = np.zeros((num_sets, most_in_flight + 1), np.int64)
    least[0] = 0
    for pair in range(len(upper)):
        here, before = upper[pair], lower[pair]
        for way in range(len(ways.degree)):
            replicas = ways.replicas[way]
            start, end = ways.first[way], ways.first[way + 1]
            rounds = np.searchsorted(costs[pair, start:end], target_s, side="right")
            for total in range(replicas, min(most_in_flight, rounds * replicas) + 1):
                devices = least[before, total - replicas] + ways.devices[way]
                if devices < least[here, total]:
                    least[here, total] = devices
                    pairs[here, total] = pair
                    chosen[here, total] = way
    return least, pairs, chosen
