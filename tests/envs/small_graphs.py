"""Random operator graphs that are small enough to try every assignment."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from heterps_configs.documents.operator_graph import OperatorGraph, execution_order
from heterps_envs.arrays import Floats, Integers
from heterps_envs.graphs.earliest_finish import earliest_finish_placements
from heterps_envs.graphs.operators import MEMORY_TOLERANCE, graph_arrays
from heterps_envs.graphs.problem import GraphTables, Placement, pack_graphs


def random_graph(seed: int, most_nodes: int = 5, cpus: int = 1) -> OperatorGraph:
    """A forward graph, often with backward twins, orphans, shared classes and little memory."""
    rng = np.random.default_rng(seed)
    count = int(rng.integers(1, most_nodes + 1))
    nodes = [_random_node(rng, f"forward {index}") for index in range(count)]
    edges = [(a, b) for b in range(count) for a in range(b) if rng.random() < 0.45]
    for index in range(count):
        if rng.random() < 0.6:
            nodes[index]["color_class"] = int(rng.integers(0, count))
    if rng.random() < 0.5:
        twin = {}
        for index in reversed(range(count)):
            if rng.random() < 0.8:
                twin[index] = len(nodes)
                nodes.append(_random_node(rng, f"backward {index}") | {"is_backward": True})
                if rng.random() < 0.7:
                    color = nodes[index].setdefault("color_class", 100 + index)
                    nodes[-1]["color_class"] = color
                if rng.random() < 0.5:
                    edges.append((index, twin[index]))
        edges += [(twin[b], twin[a]) for a, b in edges if a in twin and b in twin and b < count]
    total = sum(node["memory_bytes"] for node in nodes)
    return OperatorGraph.from_mapping(
        {
            "name": f"random {seed}",
            "num_accelerators": int(rng.integers(1, 4)),
            "num_cpus": int(rng.integers(0, cpus + 1)),
            "accelerator_memory_bytes": None if rng.random() < 0.5 else total * rng.uniform(0.3, 1),
            "nodes": nodes,
            "edges": edges,
        }
    )


def _random_node(rng: np.random.Generator, name: str) -> dict[str, Any]:
    accelerator_s = 0.0 if rng.random() < 0.3 else float(rng.integers(1, 9))
    return {
        "name": name,
        "accelerator_s": accelerator_s,
        "cpu_s": None if rng.random() < 0.1 else accelerator_s * float(rng.integers(1, 4)),
        "memory_bytes": float(rng.integers(0, 4)),
        "communication_s": float(rng.integers(0, 5)) / 2,
        "parameter_bytes": float(rng.integers(0, 4)),
    }


def all_assignments(graph: OperatorGraph) -> Iterator[tuple[int, ...]]:
    """Every assignment that breaks nothing; colour classes are placed as one."""
    for assignment in assignments_and_loads_s(graph)[0]:
        yield tuple(assignment.tolist())


def assignments_and_loads_s(graph: OperatorGraph) -> tuple[Integers, Floats]:
    """(K, N) every assignment that breaks nothing, and (K,) seconds of its most loaded device.

    All at once: what `assignment_problems` and `max_load` say of them one by one.
    """
    arrays = graph_arrays(graph)
    num_devices, num_colors = graph.num_accelerators + graph.num_cpus, int(arrays.group.max()) + 1
    choices = np.indices((num_devices,) * num_colors).reshape(num_colors, -1)
    device_of = choices.T[:, arrays.group]
    load_s, is_kept = np.zeros(len(device_of)), np.ones(len(device_of), np.bool_)
    capacity = graph.accelerator_memory_bytes
    for device in range(num_devices):
        is_here = device_of == device
        is_accelerator = device < graph.num_accelerators
        seconds = arrays.accelerator_s if is_accelerator else arrays.cpu_s
        is_kept &= ~(is_here & ~np.isfinite(seconds)).any(1)
        own_s = is_here @ np.where(np.isfinite(seconds), seconds, 0.0)
        if is_accelerator:
            for node, communication_s in enumerate(arrays.communication_s):
                readers = is_here[:, arrays.consumers[arrays.producers == node]]
                is_cut = np.where(is_here[:, node], ~readers.all(1), readers.any(1))
                own_s += communication_s * is_cut
            if capacity is not None:
                is_kept &= is_here @ arrays.memory_bytes <= capacity * (1 + MEMORY_TOLERANCE)
        load_s = np.maximum(load_s, own_s)
    return device_of[is_kept], load_s[is_kept]


def least_load_s(graph: OperatorGraph) -> float:
    """By trying everything; inf where nothing fits."""
    return float(assignments_and_loads_s(graph)[1].min(initial=math.inf))


def least_contiguous_load_s(graph: OperatorGraph) -> float:
    """By trying everything that can be put in a row; inf where nothing fits."""
    assignments, loads_s = assignments_and_loads_s(graph)
    for index in np.argsort(loads_s, kind="stable"):
        if is_contiguous(graph, assignments[index].tolist()):
            return float(loads_s[index])
    return math.inf


def is_contiguous(graph: OperatorGraph, assignment: Sequence[int]) -> bool:
    """Whether the devices can be put in a row that the forward pass never goes back.

    Backward edges of a class without forward nodes count the other way round.
    """
    nodes = graph.nodes
    with_forward = {node.color_class for node in nodes if not node.is_backward}
    pairs = []
    for producer, consumer in graph.edges:
        if not nodes[consumer].is_backward:
            pairs.append((producer, consumer))
        elif nodes[producer].is_backward and not all(
            nodes[end].color_class is not None and nodes[end].color_class in with_forward
            for end in (producer, consumer)
        ):
            pairs.append((consumer, producer))
    between = {(assignment[a], assignment[b]) for a, b in pairs if assignment[a] != assignment[b]}
    num_devices = graph.num_accelerators + graph.num_cpus
    return len(execution_order(num_devices, between)) == num_devices


def earliest_finish(tables: GraphTables, by_rank: bool = False) -> Placement | None:
    """The earliest-finish rule on one problem; None where it finds nothing that fits."""
    step_time_s, devices = earliest_finish_placements(pack_graphs([tables]), by_rank)
    return devices[0] if np.isfinite(step_time_s[0]) else None
