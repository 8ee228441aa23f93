"""Partitions of a device graph into pipelines: alike in speed and memory, cut where links are slow.

What a partition costs is the share of all bandwidth that it cuts, plus a weight times the mean
squared deviation of the parts from equal speed and memory. Graphs are bisected again and again,
from seeded starts, by passes of exchanges as Kernighan and Lin make them; passes between every two
parts follow.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from heterps_agents.systems.hexiscale.graph import Graph
from heterps_agents.systems.hexiscale.kernels import Balance, deviation, exchange
from heterps_envs.arrays import Floats, Integers

# Starts of a bisection: along links, and by chance.
NUM_STARTS = 4
# Partitions by chance that passes begin with, too: of few parts of a graph of few devices.
NUM_DEALT, MOST_PARTS, MOST_DEVICES = 16, 8, 64
# Rounds of passes between every two parts, and pairs of parts up to which there are any.
NUM_ROUNDS, MOST_PAIRS = 4, 2500


def partition_cost(graph: Graph, parts: Integers, weight: float) -> float:
    """What a partition (P, U) costs."""
    targets = _targets(graph, len(parts))
    off = [_deviation(graph, part, targets) for part in parts]
    inside = float(np.einsum("pu,uv,pv->", parts, graph.bandwidth, parts))
    inside -= float(graph.counts @ np.diag(graph.bandwidth))
    return 1 - inside / _all_bandwidth(graph) + weight * float(np.mean(off))


def partition(graph: Graph, num_parts: int, weight: float, seed: int = 0) -> Integers:
    """(P, U) devices of each kind in each part, none of which is empty.

    Args:
        graph: With at least as many devices as parts.
        num_parts: P.
        weight: Of deviations from equal parts, against the share of bandwidth that is cut.
        seed: Of the starts.
    """
    rng = np.random.default_rng(seed)
    starts = [np.array(_bisected(graph, graph.counts, num_parts, num_parts, weight, rng))]
    if num_parts <= MOST_PARTS and graph.counts.sum() <= MOST_DEVICES:
        starts += [_dealt(graph, num_parts, rng) for _ in range(NUM_DEALT)]
    for start in starts:
        _exchange_all(graph, start, weight)
    return min(starts, key=lambda parts: partition_cost(graph, parts, weight))


def _exchange_all(graph: Graph, found: Integers, weight: float) -> None:
    """Passes between every two parts, as long as they gain."""
    num_parts = len(found)
    if num_parts * (num_parts - 1) // 2 > MOST_PAIRS:
        return
    balance = Balance(
        np.tile(_targets(graph, num_parts), (2, 1)),
        np.full(2, weight / num_parts),
        np.ones(2, np.int64),
        2 / _all_bandwidth(graph),
    )
    for _ in range(NUM_ROUNDS):
        gains = [
            exchange(found[one], found[other], graph.bandwidth, graph.weights, balance)
            for one, other in combinations(range(num_parts), 2)
        ]
        if not any(gains):
            break


def _dealt(graph: Graph, num_parts: int, rng: np.random.Generator) -> Integers:
    """Devices in an order by chance, equally many for each part."""
    devices = rng.permutation(np.repeat(np.arange(len(graph.counts)), graph.counts))
    parts = np.zeros((num_parts, len(graph.counts)), np.int64)
    np.add.at(parts, (np.arange(len(devices)) % num_parts, devices), 1)
    return parts


def _bisected(
    graph: Graph,
    counts: Integers,
    num_parts: int,
    num_of_all: int,
    weight: float,
    rng: np.random.Generator,
) -> list[Integers]:
    """Parts of some of the devices."""
    if num_parts == 1:
        return [counts]
    halves = np.array([num_parts // 2, num_parts - num_parts // 2])
    balance = Balance(
        np.outer(halves, _targets(graph, num_of_all)),
        weight * halves / num_of_all,
        halves.astype(np.int64),
        2 / _all_bandwidth(graph),
    )
    best: tuple[float, Integers] | None = None
    for number in range(NUM_STARTS):
        order = rng.permutation(len(counts))
        if number == 0:
            order = _along_links(graph, counts)
        one = _filled(graph, counts, order, balance)
        other = counts - one
        exchange(one, other, graph.bandwidth, graph.weights, balance)
        cost = _cost_of_two(graph, one, other, balance)
        if best is None or cost < best[0] - 1e-12:
            best = cost, one
    assert best is not None
    sides = zip((best[1], counts - best[1]), halves.tolist(), strict=True)
    return [
        part
        for own, number in sides
        for part in _bisected(graph, own, number, num_of_all, weight, rng)
    ]


def _cost_of_two(graph: Graph, one: Integers, other: Integers, balance: Balance) -> float:
    cost = balance.cut * float(one @ graph.bandwidth @ other)
    for side, targets, weight in zip((one, other), balance.targets, balance.weight, strict=True):
        cost += float(weight) * _deviation(graph, side, targets)
    return cost


def _deviation(graph: Graph, part: Integers, targets: Floats) -> float:
    speed, memory = graph.weights @ part
    return float(deviation(float(speed), float(memory), targets))


def _filled(graph: Graph, counts: Integers, order: Integers, balance: Balance) -> Integers:
    """The first devices of an order of kinds, until they have the speed that they ought to have."""
    one, speed = np.zeros_like(counts), 0.0
    left = int(counts.sum())
    for kind in order:
        for _ in range(int(counts[kind])):
            is_enough = speed >= balance.targets[0, 0] and one.sum() >= balance.fewest[0]
            if is_enough or left <= balance.fewest[1]:
                return one
            one[kind] += 1
            left -= 1
            speed += float(graph.weights[0, kind])
    return one


def _along_links(graph: Graph, counts: Integers) -> Integers:
    """Kinds from the fastest one on, next the one with most bandwidth to those before."""
    present = np.flatnonzero(counts).tolist()
    order = [max(present, key=lambda kind: float(graph.weights[0, kind]))]
    reach = graph.bandwidth[order[0]].copy()
    while len(order) < len(present):
        left = [kind for kind in present if kind not in order]
        order.append(max(left, key=lambda kind: float(reach[kind])))
        reach += graph.bandwidth[order[-1]]
    return np.array(order)


def _targets(graph: Graph, num_parts: int) -> Floats:
    """(2,) speed and memory of each of equal parts."""
    return np.asarray(graph.weights @ graph.counts / num_parts, np.float64)


def _all_bandwidth(graph: Graph) -> float:
    """Of all links, both directions; 1 where there are none."""
    total = float(graph.counts @ graph.bandwidth @ graph.counts)
    return total - float(graph.counts @ np.diag(graph.bandwidth)) or 1.0
