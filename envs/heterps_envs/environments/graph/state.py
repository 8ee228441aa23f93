"""The node-by-node decision process on graphs: its states and what it shows, as arrays.

Nodes are placed in their own order, one device at a time. The state is the simulation of the
forward pass of all nodes so far (`heterps_envs.graphs.simulator`): exact, since nothing that comes
later can delay it. What the backward pass will take is estimated from the path back and the loads.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_envs.arrays import Floats, Integers
from heterps_envs.graphs.problem import GraphProblems, Placement

# Raise when any feature changes its meaning: policies carry the version that they were trained on.
GRAPH_FEATURE_VERSION = 1
GRAPH_CANDIDATE_FEATURES, GRAPH_STATE_FEATURES, GRAPH_NODE_FEATURES = 28, 18, 14


class GraphRows(NamedTuple):
    """The states of B episodes; all arrays have B rows.

    Attributes:
        problem: Row of the problem in `GraphProblems`.
        position: The next node.
        status: RUNNING, COMPLETE, or STUCK: no device can take the next node.
        step_time_s: Of a complete placement.
        devices: (B, V) int16 of the nodes placed.
        arrival_s, copies, is_sent, gradient_s, start_s, finish_s, free_s, channel_free_s: Those of
            `heterps_envs.graphs.simulator.GraphRow`.
        memory_bytes: (B, D) held.
        load_s: (B, D) forward and backward seconds of the nodes placed.
        channel_load_s: (B, C) seconds of the transfers asked for so far, there and back.
        return_s: (B, V) from the begin of a placed node's backward pass to the end of the step, if
            no device or channel made it wait.
        longest_s: The longest way through any placed node, see
            `heterps_envs.environments.graph.env`.
    """

    problem: Integers
    position: Integers
    status: NDArray[np.int8]
    step_time_s: Floats
    devices: Placement
    arrival_s: Floats
    copies: NDArray[np.int32]
    is_sent: NDArray[np.bool_]
    gradient_s: Floats
    start_s: Floats
    finish_s: Floats
    free_s: Floats
    channel_free_s: Floats
    memory_bytes: Floats
    load_s: Floats
    channel_load_s: Floats
    return_s: Floats
    longest_s: Floats


class GraphView(NamedTuple):
    """What `observe_graphs` writes: the devices that the next node of B episodes may go to.

    Attributes:
        candidates: (B, D, GRAPH_CANDIDATE_FEATURES), zero where the device is not allowed.
        state: (B, GRAPH_STATE_FEATURES).
        allowed: (B, D).
        node: (B,) the next node.
    """

    candidates: NDArray[np.float32]
    state: NDArray[np.float32]
    allowed: NDArray[np.bool_]
    node: Integers


def empty_graph_rows(count: int, problems: GraphProblems) -> GraphRows:
    """Room for `count` episodes on any of the problems; begin them with `start_graph_rows`."""
    nodes, devices, edges = problems.max_nodes, problems.max_devices, problems.producers.shape[1]
    return GraphRows(
        problem=np.zeros(count, np.int64),
        position=np.zeros(count, np.int64),
        status=np.zeros(count, np.int8),
        step_time_s=np.zeros(count),
        devices=np.zeros((count, nodes), np.int16),
        arrival_s=np.zeros((count, nodes, devices)),
        copies=np.zeros((count, nodes), np.int32),
        is_sent=np.zeros((count, edges), np.bool_),
        gradient_s=np.zeros((count, nodes)),
        start_s=np.zeros((count, 2, nodes)),
        finish_s=np.zeros((count, 2, nodes)),
        free_s=np.zeros((count, devices)),
        channel_free_s=np.zeros((count, problems.max_channels)),
        memory_bytes=np.zeros((count, devices)),
        load_s=np.zeros((count, devices)),
        channel_load_s=np.zeros((count, problems.max_channels)),
        return_s=np.zeros((count, nodes)),
        longest_s=np.zeros(count),
    )


def empty_graph_view(count: int, max_devices: int) -> GraphView:
    """Room for what `count` episodes see."""
    return GraphView(
        candidates=np.zeros((count, max_devices, GRAPH_CANDIDATE_FEATURES), np.float32),
        state=np.zeros((count, GRAPH_STATE_FEATURES), np.float32),
        allowed=np.zeros((count, max_devices), np.bool_),
        node=np.zeros(count, np.int64),
    )


_FROM_ZERO = (
    *("position", "status", "step_time_s", "free_s", "channel_free_s", "memory_bytes"),
    *("load_s", "channel_load_s", "longest_s"),
)


def start_graph_rows(rows: GraphRows, which: Any, problem: Any) -> None:
    """Begins new episodes.

    Args:
        rows: Written to.
        which: (K,) row indices.
        problem: (K,) or scalar, rows of the problems.
    """
    rows.problem[which] = problem
    for name in _FROM_ZERO:
        getattr(rows, name)[which] = 0
