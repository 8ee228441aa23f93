"""Operator graphs for the re-check of a split: groups, nets and loads, from the definition.

A second formulation of `heterps_envs.graphs.operators`, in plain Python and by sets: what one of
them gets wrong the other does not.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.units import bytes_text
from heterps_envs.certificates.plain_sets import Net

# Published bytes are sums of rounded numbers: they may exceed the memory by this share.
MEMORY_TOLERANCE = 1e-9
SHARE_STEPS = 60


@dataclass(frozen=True)
class PlainSplit:
    """G groups of nodes that share a device, and what they send each other.

    Attributes:
        graph: Whose groups they are.
        members: (G,) nodes of each.
        accelerator_s: (G,) seconds on an accelerator; inf: it does not run there.
        cpu_s: (G,) seconds on a CPU; inf: it does not run there.
        nets: What groups send to others.
    """

    graph: OperatorGraph
    members: tuple[tuple[int, ...], ...]
    accelerator_s: tuple[float, ...]
    cpu_s: tuple[float, ...]
    nets: tuple[Net, ...]

    def shared_out_s(self) -> float:
        """Largest load at least, if work could be divided freely and nets were free.

        Prices of a second, p on an accelerator and q on a CPU, of which all devices together cost
        1: at these every group costs at least its cheaper place, whatever the split. So their sum
        is a bound, concave in p, and the best p is between two others. A group alone is one too.
        """
        num_accelerators, num_cpus = self.graph.num_accelerators, self.graph.num_cpus
        cpu_s = self.cpu_s if num_cpus else (math.inf,) * len(self.cpu_s)
        pairs = list(zip(self.accelerator_s, cpu_s, strict=True))

        def cost(share: float) -> float:
            p, q = share / num_accelerators, (1 - share) / max(1, num_cpus)
            return math.fsum(min(_paid(p, a), _paid(q, c)) for a, c in pairs)

        low, high = (0.0, 1.0) if num_cpus else (1.0, 1.0)
        for _ in range(SHARE_STEPS):
            left, right = low + (high - low) / 3, high - (high - low) / 3
            low, high = (left, high) if cost(left) < cost(right) else (low, right)
        return max(cost(low), cost(high), *(min(pair) for pair in pairs))

    def nets_over(self, ignored_s: float) -> list[Net]:
        """All nets but the cheapest, which may be left out up to these seconds together."""
        kept, left_s = list[Net](), ignored_s * (1 + MEMORY_TOLERANCE)
        for net in sorted(self.nets, key=lambda net: net.seconds):
            left_s -= net.seconds
            if left_s < 0:
                kept.append(net)
        return kept

    def loads_s(self, assignment: Sequence[int]) -> list[float]:
        """Seconds of every device, accelerators first.

        An accelerator pays its nodes, every outside node that one of them reads, once, and every
        own node that an outside one reads, once. A CPU pays its nodes.
        """
        graph = self.graph
        loads = []
        for device in range(graph.num_accelerators + graph.num_cpus):
            own = {node for node, where in enumerate(assignment) if where == device}
            if device >= graph.num_accelerators:
                loads.append(math.fsum(_cpu_s(graph, node) for node in own))
                continue
            crossing = {a for a, b in graph.edges if (a in own) != (b in own)}
            loads.append(
                math.fsum(_accelerator_s(graph, node) for node in own)
                + math.fsum(graph.nodes[node].communication_s for node in crossing)
            )
        return loads


def plain_split(graph: OperatorGraph) -> PlainSplit:
    """The groups of a graph, in order of their first nodes."""
    members = together(graph)
    group_of = {node: group for group, nodes in enumerate(members) for node in nodes}
    readers: defaultdict[int, set[int]] = defaultdict(set)
    for producer, consumer in graph.edges:
        readers[producer].add(group_of[consumer])
    seconds: defaultdict[frozenset[int], float] = defaultdict(float)
    for producer, groups in readers.items():
        seconds[frozenset({group_of[producer], *groups})] += graph.nodes[producer].communication_s
    memory = [math.fsum(graph.nodes[node].memory_bytes for node in nodes) for nodes in members]
    room = graph.accelerator_memory_bytes
    limit = math.inf if room is None else room * (1 + MEMORY_TOLERANCE)
    return PlainSplit(
        graph,
        tuple(tuple(nodes) for nodes in members),
        tuple(math.fsum(_accelerator_s(graph, node) for node in nodes) for nodes in members),
        tuple(math.fsum(_cpu_s(graph, node) for node in nodes) for nodes in members),
        tuple(
            Net(net_s, groups, math.fsum(memory[group] for group in groups) > limit)
            for groups, net_s in seconds.items()
            if len(groups) > 1 and net_s > 0
        ),
    )


def together(graph: OperatorGraph) -> list[list[int]]:
    """Nodes that must share a device: those of a colour class; others are alone."""
    groups: dict[tuple[str, int], list[int]] = {}
    for index, node in enumerate(graph.nodes):
        color = node.color_class
        groups.setdefault(("node", index) if color is None else ("class", color), []).append(index)
    return list(groups.values())


def split_problems(graph: OperatorGraph, assignment: Sequence[int]) -> list[str]:
    """What makes an assignment no split: devices, classes, support, memory."""
    num_devices = graph.num_accelerators + graph.num_cpus
    if len(assignment) != len(graph.nodes):
        return [f"{len(assignment)} devices for {len(graph.nodes)} nodes"]
    unknown = sorted({device for device in assignment if not 0 <= device < num_devices})
    if unknown:
        return [f"device {unknown[0]} does not exist (0 .. {num_devices - 1})"]
    problems = []
    for nodes in together(graph):
        devices = sorted({assignment[node] for node in nodes})
        if len(devices) > 1:
            names = ", ".join(graph.nodes[node].name for node in nodes[:2])
            color = graph.nodes[nodes[0]].color_class
            problems.append(f"colour class {color} ({names}, ...) is on the devices {devices}")
    for node, device in enumerate(assignment):
        is_cpu = device >= graph.num_accelerators
        if math.isinf(_cpu_s(graph, node) if is_cpu else _accelerator_s(graph, node)):
            problems.append(f"{graph.nodes[node].name} does not run on device {device}")
    room = graph.accelerator_memory_bytes
    for device in range(graph.num_accelerators if room is not None else 0):
        held = math.fsum(
            node.memory_bytes
            for node, where in zip(graph.nodes, assignment, strict=True)
            if where == device
        )
        if room is not None and held > room * (1 + MEMORY_TOLERANCE):
            problems.append(
                f"device {device} holds {bytes_text(held)}, {bytes_text(held - room)} too many"
            )
    return problems


def _paid(price: float, seconds: float) -> float:
    """Infinite where the group does not run, whatever the price."""
    return math.inf if seconds == math.inf else price * seconds


def _accelerator_s(graph: OperatorGraph, node: int) -> float:
    document = graph.nodes[node]
    return document.accelerator_s if document.supported_on_accelerator else math.inf


def _cpu_s(graph: OperatorGraph, node: int) -> float:
    seconds = graph.nodes[node].cpu_s
    return math.inf if seconds is None else seconds
