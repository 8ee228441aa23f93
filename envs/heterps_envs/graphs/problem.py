"""Graph problems: one step of a graph of layers or operators on concrete devices, as arrays.

A step is a forward pass in the order of the nodes and, for training, a backward pass in the reverse
order; there are no micro-batches. `heterps_envs.graphs.simulator` says what follows what.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.errors import HeterpsError
from heterps_configs.units import bytes_text
from heterps_envs.arrays import Floats, Integers

Placement = NDArray[np.int16]

# Kernels keep the devices that hold a tensor as bits of one number.
MAX_GRAPH_DEVICES = 16
# Room for the edges of a node, on average, where problems are replaced by others later.
EDGES_PER_NODE = 3


@dataclass(frozen=True)
class GraphTables:
    """One problem: V nodes in topological order, E edges, D devices.

    Attributes:
        forward_s: (V, D) seconds of the forward pass; inf: the device cannot run the node.
        backward_s: (V, D) seconds of the backward pass; zeros for inference.
        memory_bytes: (V,) what the node's device holds for it: state and saved activations.
        output_bytes: (V,) sent once to each other device that reads the output.
        gradient_bytes: (V,) sent back once by each such device; zeros for inference.
        producer_start: (V + 1,) `producers[producer_start[v]:producer_start[v + 1]]` are the nodes
            whose output node v reads.
        producers: (E,) ascending within a node, all smaller than the node.
        device_memory_bytes: (D,).
        latency_s: (D, D) from a device to another.
        inverse_bandwidth_s_per_byte: (D, D); 0 on the diagonal.
        channel: (D, D) number of the channel that a transfer takes; transfers of one channel follow
            each other.
    """

    forward_s: Floats
    backward_s: Floats
    memory_bytes: Floats
    output_bytes: Floats
    gradient_bytes: Floats
    producer_start: Integers
    producers: Integers
    device_memory_bytes: Floats
    latency_s: Floats
    inverse_bandwidth_s_per_byte: Floats
    channel: Integers

    @property
    def num_nodes(self) -> int:
        """Number of nodes, V."""
        return len(self.memory_bytes)

    @property
    def num_devices(self) -> int:
        """Number of devices, D."""
        return len(self.device_memory_bytes)

    @property
    def num_edges(self) -> int:
        """Number of edges, E."""
        return len(self.producers)

    @cached_property
    def has_backward(self) -> bool:
        """Whether the step has a backward pass."""
        return bool(np.nan_to_num(self.backward_s, posinf=0.0).any() or self.gradient_bytes.any())

    @cached_property
    def consumer_of_edge(self) -> Integers:
        """(E,) the node that reads, in the order of `producers`."""
        return np.repeat(np.arange(self.num_nodes), np.diff(self.producer_start))


class GraphProblems(NamedTuple):
    """N problems as a structure of arrays, padded to V nodes, D devices, E edges.

    The fields from `forward_s` to `channel` are those of `GraphTables` with a leading axis N. Rooms
    beyond a problem's own sizes hold no meaning, but for `forward_s`, which is inf there.

    Attributes:
        num_nodes, num_devices, num_channels: (N,).
        has_backward: (N,) whether the step has a backward pass.
        consumer_start, consumers: (N, V + 1), (N, E) who reads each node's output, ascending.
    """

    num_nodes: Integers
    num_devices: Integers
    num_channels: Integers
    has_backward: NDArray[np.bool_]
    forward_s: Floats
    backward_s: Floats
    memory_bytes: Floats
    output_bytes: Floats
    gradient_bytes: Floats
    producer_start: NDArray[np.int32]
    producers: NDArray[np.int32]
    device_memory_bytes: Floats
    latency_s: Floats
    inverse_bandwidth_s_per_byte: Floats
    channel: NDArray[np.int32]
    consumer_start: NDArray[np.int32]
    consumers: NDArray[np.int32]

    @property
    def num_problems(self) -> int:
        """Number of problems, N."""
        return len(self.num_nodes)

    @property
    def max_nodes(self) -> int:
        """Nodes of the largest problem that there is room for, V."""
        return int(self.memory_bytes.shape[1])

    @property
    def max_devices(self) -> int:
        """Devices of the largest problem that there is room for, D."""
        return int(self.device_memory_bytes.shape[1])

    @property
    def max_channels(self) -> int:
        """Room for channels: one for each device, and one for each device's node."""
        return 2 * self.max_devices


def empty_graphs(count: int, max_nodes: int, max_devices: int, max_edges: int) -> GraphProblems:
    """Room for `count` problems; fill it with `put_graph`."""
    n, nodes, devices = count, max_nodes, max_devices
    return GraphProblems(
        num_nodes=np.zeros(n, np.int64),
        num_devices=np.zeros(n, np.int64),
        num_channels=np.zeros(n, np.int64),
        has_backward=np.zeros(n, np.bool_),
        forward_s=np.full((n, nodes, devices), np.inf),
        backward_s=np.zeros((n, nodes, devices)),
        memory_bytes=np.zeros((n, nodes)),
        output_bytes=np.zeros((n, nodes)),
        gradient_bytes=np.zeros((n, nodes)),
        producer_start=np.zeros((n, nodes + 1), np.int32),
        producers=np.zeros((n, max_edges), np.int32),
        device_memory_bytes=np.zeros((n, devices)),
        latency_s=np.zeros((n, devices, devices)),
        inverse_bandwidth_s_per_byte=np.zeros((n, devices, devices)),
        channel=np.zeros((n, devices, devices), np.int32),
        consumer_start=np.zeros((n, nodes + 1), np.int32),
        consumers=np.zeros((n, max_edges), np.int32),
    )


_SHARED_FIELDS = tuple(name for name in GraphTables.__dataclass_fields__ if "producer" not in name)


def put_graph(problems: GraphProblems, row: int, tables: GraphTables) -> None:
    """Writes one problem into a row.

    Raises:
        HeterpsError: The problem is larger than the room, or a node can run on no device.
    """
    sizes = tables.num_nodes, tables.num_devices, tables.num_edges
    room = problems.max_nodes, problems.max_devices, problems.producers.shape[1]
    if any(size > limit for size, limit in zip(sizes, room, strict=True)):
        raise HeterpsError(
            f"a graph has {sizes[0]} nodes, {sizes[1]} devices and {sizes[2]} edges; there is room "
            f"for {room[0]}, {room[1]} and {room[2]}"
        )
    _check(tables)
    problems.num_nodes[row], problems.num_devices[row] = sizes[:2]
    # The channels on the diagonal are never used.
    different = ~np.eye(tables.num_devices, dtype=bool)
    problems.num_channels[row] = max(tables.channel[different].max(initial=-1) + 1, 1)
    problems.has_backward[row] = tables.has_backward
    problems.forward_s[row] = np.inf
    for name in _SHARED_FIELDS:
        value = np.asarray(getattr(tables, name))
        getattr(problems, name)[(row, *(slice(0, size) for size in value.shape))] = value
    problems.producer_start[row] = sizes[2]
    problems.producer_start[row, : sizes[0] + 1] = tables.producer_start
    problems.producers[row, : sizes[2]] = tables.producers
    # A stable sort by producer leaves the consumers of one producer ascending.
    order = np.argsort(tables.producers, kind="stable")
    problems.consumers[row, : sizes[2]] = tables.consumer_of_edge[order]
    counts = np.bincount(tables.producers, minlength=problems.max_nodes)
    problems.consumer_start[row, 1:] = np.cumsum(counts)


def _check(tables: GraphTables) -> None:
    """Raises a HeterpsError for a problem that no placement can solve."""
    runs = np.isfinite(tables.forward_s) & np.isfinite(tables.backward_s)
    fits = tables.memory_bytes[:, None] <= tables.device_memory_bytes
    stranded = np.flatnonzero(~(runs & fits).any(axis=1))
    if len(stranded):
        node = int(stranded[0])
        raise HeterpsError(
            f"node {node} can run on no device"
            if not runs[node].any()
            else f"node {node} fits on no device: it needs {bytes_text(tables.memory_bytes[node])}"
        )
    assert (tables.producers < tables.consumer_of_edge).all()
    assert tables.channel.max() < 2 * tables.num_devices


def pack_graphs(
    tables: Sequence[GraphTables], max_nodes: int = 0, max_devices: int = 0, max_edges: int = 0
) -> GraphProblems:
    """Packs problems of any sizes.

    Args:
        tables: The problems, at least one.
        max_nodes: Room for nodes; 0 for as many as the largest problem has.
        max_devices: The same for devices; at most `MAX_GRAPH_DEVICES`.
        max_edges: The same for edges; 0 also leaves `EDGES_PER_NODE` for each node of the room.

    Raises:
        HeterpsError: There is no problem, or one that does not fit into the given room, or a node
            that fits on no device.
    """
    if not tables:
        raise HeterpsError("there must be at least one graph")
    nodes = max_nodes or max(entry.num_nodes for entry in tables)
    devices = max_devices or max(entry.num_devices for entry in tables)
    if devices > MAX_GRAPH_DEVICES:
        raise HeterpsError(
            f"graphs are placed on at most {MAX_GRAPH_DEVICES} devices, not {devices}"
        )
    edges = max_edges or max(EDGES_PER_NODE * nodes, *(entry.num_edges for entry in tables))
    problems = empty_graphs(len(tables), nodes, devices, edges)
    for row, entry in enumerate(tables):
        put_graph(problems, row, entry)
    return problems
