"""Operator graphs as arrays, and the published objective of a split: the largest load of a device.

An assignment names a device for each node: `0 .. num_accelerators - 1` are the accelerators, the
CPUs follow. The load of an accelerator is the seconds of its nodes, plus the communication seconds
of each outside node that one of its nodes reads (once, whatever the number of readers), plus those
of each own node that an outside node reads (once again). A CPU pays no communication. This is the
`max-load` of Tarnawski et al., "Efficient algorithms for device placement of DNN graph operators"
(NeurIPS 2020), for inference and, with forward and backward load added, for training.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.units import bytes_text

# Published loads are sums of rounded numbers: bytes may exceed the memory by this share.
MEMORY_TOLERANCE = 1e-9


class GraphArrays(NamedTuple):
    """An operator graph for kernels.

    Attributes:
        accelerator_s: (N,) seconds; inf where the node runs on CPUs only.
        cpu_s: (N,) seconds; inf where the node runs on accelerators only.
        memory_bytes: (N,).
        communication_s: (N,) seconds to move the node's output, each way.
        is_backward: (N,) bool.
        group: (N,) colour classes numbered from 0 in order of appearance; a node without a class
            is a group of its own.
        producers: (E,) distinct edges, first end.
        consumers: (E,) second end.
    """

    accelerator_s: NDArray[np.float64]
    cpu_s: NDArray[np.float64]
    memory_bytes: NDArray[np.float64]
    communication_s: NDArray[np.float64]
    is_backward: NDArray[np.bool_]
    group: NDArray[np.int64]
    producers: NDArray[np.int64]
    consumers: NDArray[np.int64]


def graph_arrays(graph: OperatorGraph) -> GraphArrays:
    """The arrays of a graph, nodes in the graph's own order."""
    nodes = graph.nodes
    keys = [
        ("node", index) if node.color_class is None else ("color", node.color_class)
        for index, node in enumerate(nodes)
    ]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    edges = np.array(sorted(set(graph.edges)), dtype=np.int64).reshape(-1, 2)
    return GraphArrays(
        accelerator_s=np.array(
            [node.accelerator_s if node.supported_on_accelerator else math.inf for node in nodes]
        ),
        cpu_s=np.array([math.inf if node.cpu_s is None else node.cpu_s for node in nodes]),
        memory_bytes=np.array([node.memory_bytes for node in nodes], dtype=float),
        communication_s=np.array([node.communication_s for node in nodes], dtype=float),
        is_backward=np.array([node.is_backward for node in nodes]),
        group=np.array([numbers[key] for key in keys], dtype=np.int64),
        producers=np.ascontiguousarray(edges[:, 0]),
        consumers=np.ascontiguousarray(edges[:, 1]),
    )


def device_loads(graph: OperatorGraph, assignment: Sequence[int]) -> list[float]:
    """Seconds of every device, accelerators first; see the module's docstring.

    Plain Python over the document, so that it checks what kernels found. inf where a device cannot
    run one of its nodes.
    """
    is_accelerator = [True] * graph.num_accelerators + [False] * graph.num_cpus
    loads = [0.0] * len(is_accelerator)
    for node, device in zip(graph.nodes, assignment, strict=True):
        if is_accelerator[device]:
            loads[device] += node.accelerator_s if node.supported_on_accelerator else math.inf
        else:
            loads[device] += math.inf if node.cpu_s is None else node.cpu_s
    received: defaultdict[int, set[int]] = defaultdict(set)
    sent: defaultdict[int, set[int]] = defaultdict(set)
    for producer, consumer in graph.edges:
        if assignment[producer] != assignment[consumer]:
            received[assignment[consumer]].add(producer)
            sent[assignment[producer]].add(producer)
    for device, accelerates in enumerate(is_accelerator):
        if accelerates:
            for node_index in [*sorted(received[device]), *sorted(sent[device])]:
                loads[device] += graph.nodes[node_index].communication_s
    return loads


def max_load(graph: OperatorGraph, assignment: Sequence[int]) -> float:
    """Seconds of the most loaded device: the published objective.

    Args:
        graph: The graph, with its devices.
        assignment: Device of each node.
    """
    return max(device_loads(graph, assignment))


def assignment_problems(graph: OperatorGraph, assignment: Sequence[int]) -> list[str]:
    """What an assignment breaks: devices that do not exist, memory, colour classes, support."""
    num_devices = graph.num_accelerators + graph.num_cpus
    if len(assignment) != len(graph.nodes):
        return [f"{len(assignment)} devices for {len(graph.nodes)} nodes"]
    problems = [
        f"{node.name}: device {device} does not exist (0 .. {num_devices - 1})"
        for node, device in zip(graph.nodes, assignment, strict=True)
        if not 0 <= device < num_devices
    ]
    if problems:
        return problems
    device_of_color: dict[int, int] = {}
    memory = [0.0] * num_devices
    for node, device in zip(graph.nodes, assignment, strict=True):
        memory[device] += node.memory_bytes
        runs = node.supported_on_accelerator
        if device >= graph.num_accelerators:
            runs = node.cpu_s is not None
        if not runs:
            problems.append(f"{node.name}: does not run on device {device}")
        color = node.color_class
        if color is not None and device_of_color.setdefault(color, device) != device:
            problems.append(
                f"{node.name}: on device {device}, but its colour class {color} is on"
                f" {device_of_color[color]}"
            )
    capacity = graph.accelerator_memory_bytes
    if capacity is not None:
        problems.extend(
            f"device {device}: {bytes_text(held)}, {bytes_text(held - capacity)} more than fits"
            for device, held in enumerate(memory[: graph.num_accelerators])
            if held > capacity * (1 + MEMORY_TOLERANCE)
        )
    return problems
