"""Graph problems out of documents: a model profile on a cluster, or an operator graph.

Both become one training (or inference) step without micro-batches: the whole batch passes at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.operator_graph import OperatorGraph
from heterps_configs.errors import HeterpsError
from heterps_envs.arrays import Floats
from heterps_envs.graphs.condensation import condense
from heterps_envs.graphs.problem import MAX_GRAPH_DEVICES, GraphTables
from heterps_envs.problem import Problem

DEFAULT_BATCH_SIZE = 32
# Of a transfer between an accelerator and its host, where a document gives bytes but no seconds:
# PCIe 3.0 x16, about what it gives in practice.
HOST_BYTES_PER_S = 12e9


@dataclass(frozen=True)
class SourceGraph:
    """A graph problem with the names of its parts.

    Attributes:
        name: What tables call it.
        tables: The problem.
        nodes: (V,) names; of a node that stands for several operators, that of the first.
        members: (V,) for each node the operators or layers of the document that it stands for.
        devices: (D,) names.
    """

    name: str
    tables: GraphTables
    nodes: tuple[str, ...]
    members: tuple[tuple[int, ...], ...]
    devices: tuple[str, ...]


def graph_of_profile(
    profile: ModelProfile,
    cluster: Cluster,
    job: Job | None = None,
    training: Sequence[ModelProfile] = (),
) -> SourceGraph:
    """The layers of a model on the concrete devices of a cluster.

    Where the profile says which tensors a layer sends how far (`LayerProfile.sent`), an edge leads
    to the last reader of each; a layer that is the last reader of nothing reads the layer in front
    of it, unless it holds embedding tables, which read the model's inputs. Otherwise the layers are
    a chain. The optimizer step counts with the backward pass.

    Args:
        profile: The model.
        cluster: At most `MAX_GRAPH_DEVICES` devices.
        job: Its whole batch passes at once; by default of `DEFAULT_BATCH_SIZE` samples.
        training: Profiles of other models, whose measurements calibrate estimated seconds.

    Raises:
        HeterpsError: The cluster has too many devices.
    """
    devices = cluster.devices
    if len(devices) > MAX_GRAPH_DEVICES:
        raise HeterpsError(
            f"cluster {cluster.name!r} has {len(devices)} devices; graphs are placed on at most "
            f"{MAX_GRAPH_DEVICES}"
        )
    job = job or Job(global_batch_size=DEFAULT_BATCH_SIZE, dtype=profile.dtype)
    whole = {"micro_batch_size": job.global_batch_size, "unequal_micro_batch_sizes": None}
    job = job.changed(**whole)
    problem = Problem(profile, cluster, job, training=tuple(training))
    costs = problem.tables
    kinds = [problem.class_of[device.name] for device in devices]
    reads, output_bytes = _layer_edges(profile)
    output_bytes = output_bytes * profile.activation_scale(job.dtype) * job.micro_batch_size
    latency_s, inverse_bandwidth, channel = _cluster_links(problem)
    tables = GraphTables(
        forward_s=costs.forward_s[:, kinds],
        backward_s=costs.backward_s[:, kinds] + costs.optimizer_s[:, kinds],
        memory_bytes=costs.state_bytes + costs.activation_bytes,
        output_bytes=output_bytes,
        gradient_bytes=output_bytes.copy(),
        producer_start=np.cumsum([0, *map(len, reads)], dtype=np.int64),
        producers=np.array([node for entry in reads for node in entry], dtype=np.int64),
        device_memory_bytes=costs.memory_bytes[kinds],
        latency_s=latency_s,
        inverse_bandwidth_s_per_byte=inverse_bandwidth,
        channel=channel,
    )
    return SourceGraph(
        name=f"{profile.name} on {cluster.name}",
        tables=tables,
        nodes=tuple(layer.name for layer in profile.layers),
        members=tuple((index,) for index in range(profile.num_layers)),
        devices=tuple(device.name for device in devices),
    )


def _layer_edges(profile: ModelProfile) -> tuple[list[list[int]], Floats]:
    """Which layers each layer reads, and (L,) the most bytes, one sample, sent to one reader."""
    layers = profile.layers
    if not any(layer.sent for layer in layers):
        chain = [[index - 1] if index else [] for index in range(len(layers))]
        return chain, np.array([layer.output_bytes for layer in layers])
    sizes = [dict[int, float]() for _ in layers]
    for index, layer in enumerate(layers):
        for cuts, num_bytes in layer.sent:
            reader = index + cuts
            sizes[index][reader] = sizes[index].get(reader, 0.0) + num_bytes
    reads = [
        [producer for producer in range(index) if index in sizes[producer]]
        for index in range(len(layers))
    ]
    for index, layer in enumerate(layers):
        if index and not reads[index] and not layer.sparse_parameters:
            reads[index] = [index - 1]
    return reads, np.array([max(entry.values(), default=0.0) for entry in sizes])


def _cluster_links(problem: Problem) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """Latency, inverse bandwidth and channel from each device to each other one."""
    devices = problem.cluster.devices
    hosts = list(dict.fromkeys(device.node for device in devices))
    size = len(devices)
    latency_s, inverse_bandwidth = np.zeros((size, size)), np.zeros((size, size))
    channel = np.zeros((size, size), np.int64)
    for i, source in enumerate(devices):
        for j, target in enumerate(devices):
            same = source.node == target.node
            channel[i, j] = i if same else size + hosts.index(source.node)
            if i != j:
                link = problem.link(source.name, target.name)
                latency_s[i, j] = link.latency_s
                inverse_bandwidth[i, j] = 1 / link.bandwidth_bytes_per_s
    return latency_s, inverse_bandwidth, channel


def graph_of_operators(graph: OperatorGraph, backward_share: float = 0.0) -> SourceGraph:
    """An operator graph on the accelerators and CPUs that its document names.

    Operators of one colour class become one node, and so do nodes that would then close a circle.
    Backward operators give their seconds to the node of their forward twin (without one, of an
    operator that they read), whose backward pass they are: the simulator runs it in reverse order
    and sends gradients of the outputs' sizes back.

    Transfers go through the host, as in the documents: an accelerator sends its output to the host,
    another one fetches it from there; CPUs share the host's memory. Each device has a channel of
    its own.

    Args:
        graph: The document.
        backward_share: Of the seconds of each operator, the share of its backward pass, where the
            document gives forward and backward in one number (PipeDream's profiles).

    Raises:
        HeterpsError: There are too many devices, or a node that no device can run.
    """
    is_cpu = np.repeat([False, True], [graph.num_accelerators, graph.num_cpus])
    if len(is_cpu) > MAX_GRAPH_DEVICES:
        raise HeterpsError(
            f"{graph.name}: has {len(is_cpu)} devices; graphs are placed on at most "
            f"{MAX_GRAPH_DEVICES}"
        )
    nodes = condense(graph)
    forward_s = np.array([_seconds(graph, node.forward, is_cpu) for node in nodes])
    backward_s = np.array([_seconds(graph, node.backward, is_cpu) for node in nodes])
    has_backward = backward_share > 0 or any(node.backward for node in nodes)
    runs = np.isfinite(forward_s) & np.isfinite(backward_s)
    whole_s = np.where(runs, forward_s, 0.0)
    forward_s = np.where(runs, (1 - backward_share) * whole_s, np.inf)
    backward_s = np.where(runs, backward_s, 0.0) + backward_share * whole_s
    output_bytes = np.array([_output_bytes(graph, node.sends) for node in nodes])
    memory = np.array(
        [
            sum(graph.nodes[index].memory_bytes for index in (*node.forward, *node.backward))
            for node in nodes
        ]
    )
    limit = graph.accelerator_memory_bytes
    everything = float(memory.sum())
    # Half of the way is to the host, half from there; CPUs are there already.
    half_ways = (~is_cpu).astype(float)
    inverse_bandwidth = (half_ways[:, None] + half_ways) / HOST_BYTES_PER_S
    np.fill_diagonal(inverse_bandwidth, 0.0)
    tables = GraphTables(
        forward_s=forward_s,
        backward_s=backward_s,
        memory_bytes=memory,
        output_bytes=output_bytes,
        gradient_bytes=output_bytes.copy() if has_backward else np.zeros(len(nodes)),
        producer_start=np.cumsum([0, *(len(node.reads) for node in nodes)], dtype=np.int64),
        producers=np.array([read for node in nodes for read in node.reads], dtype=np.int64),
        device_memory_bytes=np.where(is_cpu | (limit is None), everything, limit or 0.0),
        latency_s=np.zeros_like(inverse_bandwidth),
        inverse_bandwidth_s_per_byte=inverse_bandwidth,
        channel=np.repeat(np.arange(len(is_cpu)), len(is_cpu)).reshape(inverse_bandwidth.shape),
    )
    return SourceGraph(
        name=graph.name,
        tables=tables,
        nodes=tuple(graph.nodes[node.forward[0]].name for node in nodes),
        members=tuple((*node.forward, *node.backward) for node in nodes),
        devices=(
            *(f"accelerator-{index}" for index in range(graph.num_accelerators)),
            *(f"cpu-{index}" for index in range(graph.num_cpus)),
        ),
    )


def _seconds(
    graph: OperatorGraph, members: Sequence[int], is_cpu: NDArray[np.bool_]
) -> NDArray[np.float64]:
    """(D,) seconds of some operators on each device; inf where it cannot run one of them."""
    operators = [graph.nodes[index] for index in members]
    on_accelerator = sum(
        entry.accelerator_s if entry.supported_on_accelerator else np.inf for entry in operators
    )
    on_cpu = sum(np.inf if entry.cpu_s is None else entry.cpu_s for entry in operators)
    return np.where(is_cpu, on_cpu, on_accelerator)


def _output_bytes(graph: OperatorGraph, senders: Sequence[int]) -> float:
    """Bytes of what some operators send; seconds in the document stand for so many bytes."""
    entries = [graph.nodes[index] for index in senders]
    return sum(entry.output_bytes + entry.communication_s * HOST_BYTES_PER_S for entry in entries)
