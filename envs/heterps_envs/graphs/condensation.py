"""Operator graphs made smaller: what must share a device, or closes a circle, becomes one node."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from heterps_configs.documents.operator_graph import OperatorGraph, execution_order
from heterps_envs.arrays import Integers


class CondensedNode(NamedTuple):
    """Operators that share a device.

    Attributes:
        forward: Its operators of the forward pass, as the document numbers them; at least one.
        backward: Its operators of the backward pass.
        reads: The nodes that its forward operators read, ascending.
        sends: Of `forward`, those that another node reads.
    """

    forward: tuple[int, ...]
    backward: tuple[int, ...]
    reads: tuple[int, ...]
    sends: tuple[int, ...]


def condense(graph: OperatorGraph) -> list[CondensedNode]:
    """The nodes of a graph in topological order, near to the order of the document.

    Operators of one colour class share a node; nodes on a circle, which such classes can close,
    share one as well. A backward operator without a forward twin belongs to the node of an operator
    that it reads, and to one of its own (which then counts as forward) if it reads none.
    """
    group = _groups(graph)
    is_forward = _counts_as_forward(graph, group)
    edges = np.array(
        [edge for edge in graph.edges if is_forward[edge[0]] and is_forward[edge[1]]], dtype=int
    ).reshape(-1, 2)
    # Nodes that reach each other (strongly connected) have no order: they become one.
    ends = group[edges]
    size = int(group.max()) + 1
    matrix = coo_matrix((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(size, size))
    group = connected_components(matrix, connection="strong")[1][group]
    between = group[edges][group[edges[:, 0]] != group[edges[:, 1]]]
    first = {int(key): index for index, key in reversed(list(enumerate(group.tolist())))}
    numbers = {key: number for number, key in enumerate(sorted(first, key=first.__getitem__))}
    pairs = sorted({(numbers[int(a)], numbers[int(b)]) for a, b in between})
    order = execution_order(len(numbers), pairs)
    place = {number: index for index, number in enumerate(order)}
    node_of = np.array([place[numbers[int(key)]] for key in group])
    return _nodes(node_of, is_forward, edges)


def _nodes(
    node_of: Integers, is_forward: NDArray[np.bool_], edges: Integers
) -> list[CondensedNode]:
    count = int(node_of.max()) + 1
    forward: list[list[int]] = [[] for _ in range(count)]
    backward: list[list[int]] = [[] for _ in range(count)]
    for operator, node in enumerate(node_of.tolist()):
        (forward if is_forward[operator] else backward)[node].append(operator)
    reads: list[set[int]] = [set() for _ in range(count)]
    sends: list[set[int]] = [set() for _ in range(count)]
    for producer, consumer in edges.tolist():
        source, target = int(node_of[producer]), int(node_of[consumer])
        if source != target:
            reads[target].add(source)
            sends[source].add(producer)
    return [
        CondensedNode(tuple(forward[i]), tuple(backward[i]), *map(_sorted, (reads[i], sends[i])))
        for i in range(count)
    ]


def _sorted(values: set[int]) -> tuple[int, ...]:
    return tuple(sorted(values))


def _groups(graph: OperatorGraph) -> Integers:
    """(N,) operators of equal number share a device."""
    keys = [
        ("node", index) if entry.color_class is None else ("color", entry.color_class)
        for index, entry in enumerate(graph.nodes)
    ]
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys))}
    group = np.array([numbers[key] for key in keys])
    with_forward = {
        int(group[index]) for index, entry in enumerate(graph.nodes) if not entry.is_backward
    }
    producers: list[list[int]] = [[] for _ in graph.nodes]
    for producer, consumer in graph.edges:
        producers[consumer].append(producer)
    # In execution order, so that what an operator reads has found its group already.
    for index in execution_order(len(graph.nodes), graph.edges):
        if int(group[index]) not in with_forward and producers[index]:
            group[group == group[index]] = group[producers[index][0]]
    return np.unique(group, return_inverse=True)[1]


def _counts_as_forward(graph: OperatorGraph, group: Integers) -> NDArray[np.bool_]:
    """(N,) forward operators, and all those of groups that have none."""
    is_forward = np.array([not entry.is_backward for entry in graph.nodes])
    has_forward = np.bincount(group, is_forward) > 0
    return np.asarray(is_forward | ~has_forward[group])
