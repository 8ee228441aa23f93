"""Random graph problems in real units, for training and held-out sets. Deterministic by seed.

A family (`heterps_envs.problem_sets.graph_families`) gives the graph; the devices are those of the
shipped catalogue, with noise, on one to three nodes. Seconds come from the roofline: the slower of
arithmetic and memory traffic. Then three ratios are drawn, which decide what a good placement looks
like: transfers over compute, the share of the memory that is needed, backward over forward seconds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_configs.arguments import check_range, check_seed
from heterps_configs.documents.device import DeviceType, device_type_named
from heterps_configs.errors import UnknownNameError
from heterps_envs.arrays import Floats, Integers
from heterps_envs.graphs.problem import GraphTables
from heterps_envs.problem_sets.clusters import DRAWN_CPU, DRAWN_GPUS
from heterps_envs.problem_sets.graph_families import GRAPH_FAMILIES, GraphShape, draw_shape

INFERENCE_SHARE = 0.15
CPU_SHARE = 0.06
# What a host leaves of its memory to one job, over the memory of its largest GPU. (With all of it
# a full cluster would mean: nearly everything on the CPU.)
LARGEST_CPU_MEMORY = 1.5
# Some operators have no kernel for one of the devices.
UNSUPPORTED_SHARE = 0.05
# So often the graph needs 40 to 85 % of all memory; otherwise 10 to 40 %.
TIGHT_SHARE = 0.8
# No device is more often than this faster than another one of its cluster, on paper.
LARGEST_SPREAD = 10.0
TRANSFER_SHARE = (0.05, 1.5)  # a usual transfer over a usual node's forward pass
INSIDE_BYTES_PER_S = (12.5e9, 25e9, 64e9, 300e9)  # PCIe 3/4/5, NVLink
BETWEEN_BYTES_PER_S = (1.25e9, 3.1e9, 12.5e9, 25e9, 50e9)  # 10 GbE ... 400 Gb/s
STATE_BYTES_PER_PARAMETER = 16.0


class _Devices(NamedTuple):
    """(D,) devices; `host` numbers the node that each stands on."""

    flops_per_s: Floats
    bandwidth_bytes_per_s: Floats
    memory_bytes: Floats
    host: Integers


def generate_graphs(
    count: int,
    seed: int,
    nodes: tuple[int, int] = (24, 64),
    devices: tuple[int, int] = (3, 6),
    families: Sequence[str] = GRAPH_FAMILIES,
) -> list[GraphTables]:
    """Draws problems; problem i depends on `seed` and i alone, so longer lists extend shorter ones.

    Every problem has a placement that fits.

    Args:
        count: How many.
        seed: Any non-negative integer.
        nodes: Smallest and largest number of nodes.
        devices: The same of devices.
        families: Names of `GRAPH_FAMILIES`.

    Raises:
        UnknownNameError: There is no such family.
        HeterpsError: A range is empty, or the seed is none.
    """
    check_seed(seed)
    for name, limits in (("nodes", nodes), ("devices", devices)):
        check_range(name, limits, least=1)
    for family in families:
        if family not in GRAPH_FAMILIES:
            raise UnknownNameError("graph family", family, GRAPH_FAMILIES)
    return [draw_graph([seed, index], nodes, devices, families) for index in range(count)]


def draw_graph(
    seed: int | Sequence[int],
    nodes: tuple[int, int] = (24, 64),
    devices: tuple[int, int] = (3, 6),
    families: Sequence[str] = GRAPH_FAMILIES,
) -> GraphTables:
    """One problem of `generate_graphs`, by a seed of its own."""
    rng = np.random.default_rng(seed)
    num_nodes = int(rng.integers(nodes[0], nodes[1] + 1))
    num_devices = int(rng.integers(devices[0], devices[1] + 1))
    shape = draw_shape(families[int(rng.integers(len(families)))], num_nodes, rng)
    cluster = _devices(rng, num_devices)
    forward_s = _forward_s(rng, shape, cluster)
    latency_s, inverse_bandwidth, channel = _links(rng, cluster.host)
    output_bytes = _output_bytes(rng, shape, forward_s, inverse_bandwidth)
    is_inference = bool(rng.random() < INFERENCE_SHARE)
    ratio = rng.uniform(1.6, 2.4) * _noise(rng, 0.1, num_nodes, 1)
    backward_s = np.zeros_like(forward_s) if is_inference else ratio * forward_s
    forward_s, backward_s = _without_kernels(rng, forward_s, backward_s)
    memory_bytes = shape.parameters * _noise(rng, 0.4, num_nodes) * rng.uniform(0.3, 3.0)
    memory_bytes += shape.output * _noise(rng, 0.4, num_nodes) * rng.uniform(0.3, 3.0)
    memory_bytes *= _log_uniform(rng, 1e6, 3e7) * STATE_BYTES_PER_PARAMETER
    return GraphTables(
        forward_s=forward_s,
        backward_s=backward_s,
        memory_bytes=memory_bytes,
        output_bytes=output_bytes,
        gradient_bytes=np.zeros(num_nodes) if is_inference else output_bytes.copy(),
        producer_start=np.cumsum([0, *map(len, shape.producers)], dtype=np.int64),
        producers=np.array([node for entry in shape.producers for node in entry], dtype=np.int64),
        device_memory_bytes=_memory(rng, memory_bytes, cluster.memory_bytes, forward_s),
        latency_s=latency_s,
        inverse_bandwidth_s_per_byte=inverse_bandwidth,
        channel=channel,
    )


def graphs_fingerprint(problems: Sequence[GraphTables]) -> str:
    """16 hexadecimal digits of the problems' numbers, at four significant digits."""
    digest = hashlib.sha256()
    for tables in problems:
        for name in GraphTables.__dataclass_fields__:
            values = np.asarray(getattr(tables, name), dtype=float).ravel()
            digest.update(name.encode() + ",".join(f"{value:.3e}" for value in values).encode())
    return digest.hexdigest()[:16]


def _noise(rng: np.random.Generator, sigma: float, *shape: int) -> Floats:
    return np.exp(sigma * rng.standard_normal(shape))


def _log_uniform(rng: np.random.Generator, low: float, high: float) -> float:
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


@lru_cache(maxsize=1)
def _catalogue() -> tuple[list[DeviceType], list[DeviceType]]:
    """GPUs of the shipped catalogue, and whole CPUs."""
    return [device_type_named(name) for name in DRAWN_GPUS], [device_type_named(DRAWN_CPU)]


def _devices(rng: np.random.Generator, count: int) -> _Devices:
    """Hosts of one type of GPU each, and now and then one CPU."""
    gpus, cpus = _catalogue()
    num_hosts = int(rng.integers(1, min(3, count) + 1))
    host = np.sort(rng.integers(0, num_hosts, count))
    first = gpus[int(rng.integers(len(gpus)))]
    near = [entry for entry in gpus if _spread(entry, first) <= LARGEST_SPREAD]
    # A workstation may hold unequal cards.
    mixed = bool(rng.random() < 0.7)
    of_host = [near[int(rng.integers(len(near)))] for _ in range(num_hosts)]
    types = [near[int(rng.integers(len(near)))] if mixed else of_host[index] for index in host]
    if rng.random() < CPU_SHARE:
        types[int(rng.integers(count))] = cpus[0]
    largest = max((entry.memory_bytes for entry in types if entry.kind == "gpu"), default=np.inf)
    memory = np.array([min(entry.memory_bytes, LARGEST_CPU_MEMORY * largest) for entry in types])
    return _Devices(
        flops_per_s=np.array([entry.peak("float16") for entry in types]) * _noise(rng, 0.15, count),
        bandwidth_bytes_per_s=np.array([entry.memory_bandwidth_bytes_per_s for entry in types])
        * _noise(rng, 0.15, count),
        memory_bytes=memory * _noise(rng, 0.2, count),
        host=host,
    )


def _spread(one: DeviceType, other: DeviceType) -> float:
    """How many times faster the faster of two types is."""
    ratio = one.peak("float16") / other.peak("float16")
    return max(ratio, 1 / ratio)


def _forward_s(rng: np.random.Generator, shape: GraphShape, cluster: _Devices) -> Floats:
    count = len(shape.work)
    flops = _log_uniform(rng, 1e10, 1e12) * shape.work * _noise(rng, rng.uniform(0.3, 1.0), count)
    # FLOPs for each byte of traffic: around where the catalogue's devices bend.
    intensity = _log_uniform(rng, 60, 400) * _noise(rng, rng.uniform(0.4, 1.2), count)
    arithmetic = flops[:, None] / (rng.uniform(0.3, 0.6) * cluster.flops_per_s)
    traffic = (flops / intensity)[:, None] / (0.7 * cluster.bandwidth_bytes_per_s)
    launch_s = 1e-5
    return np.asarray(
        (np.maximum(arithmetic, traffic) + launch_s) * _noise(rng, 0.15, *traffic.shape)
    )


def _links(rng: np.random.Generator, host: Integers) -> tuple[Floats, Floats, Integers]:
    """Inside a host each device sends through a channel of its own; out of it all share a card."""
    count = len(host)
    num_hosts = int(host.max()) + 1
    same = host[:, None] == host
    inside = rng.choice(INSIDE_BYTES_PER_S, num_hosts)[host][:, None] * np.ones(count)
    between = float(rng.choice(BETWEEN_BYTES_PER_S)) * _noise(rng, 0.4, num_hosts, num_hosts)
    speed = np.where(same, inside, between[host[:, None], host]) * _noise(rng, 0.1, count, count)
    latency_s = np.where(same, _log_uniform(rng, 3e-6, 3e-5), _log_uniform(rng, 1e-5, 2e-4))
    inverse_bandwidth = 1 / speed
    channel = np.where(same, np.arange(count)[:, None], count + host[:, None])
    for matrix in (latency_s, inverse_bandwidth):
        np.fill_diagonal(matrix, 0.0)
    return latency_s, inverse_bandwidth, channel.astype(np.int64)


def _output_bytes(
    rng: np.random.Generator, shape: GraphShape, forward_s: Floats, inverse_bandwidth: Floats
) -> Floats:
    """Sizes that make a usual transfer take a drawn share of a usual node's seconds."""
    output = shape.output * _noise(rng, rng.uniform(0.1, 0.8), len(shape.output))
    links = inverse_bandwidth[inverse_bandwidth > 0]
    usual_link = float(np.median(links)) if len(links) else 1.0
    usual_s = float(np.median(forward_s)) * _log_uniform(rng, *TRANSFER_SHARE)
    return np.asarray(output / np.median(output) * usual_s / usual_link)


def _without_kernels(
    rng: np.random.Generator, forward_s: Floats, backward_s: Floats
) -> tuple[Floats, Floats]:
    """Now and then one device, of several, cannot run a part of the nodes."""
    if rng.random() < UNSUPPORTED_SHARE and forward_s.shape[1] > 1:
        device = int(rng.integers(forward_s.shape[1]))
        lacking = rng.random(len(forward_s)) < rng.uniform(0.05, 0.3)
        forward_s[lacking, device] = np.inf
    return forward_s, backward_s


def _memory(
    rng: np.random.Generator, needed: Floats, device_memory_bytes: Floats, forward_s: Floats
) -> Floats:
    """Memory of which the graph needs a drawn share; more if a simple packing then fails.

    The sizes keep their ratios; the scale stands for what a shared device leaves free.
    """
    is_tight = rng.random() < TIGHT_SHARE
    fullness = rng.uniform(0.4, 0.85) if is_tight else rng.uniform(0.1, 0.4)
    memory = device_memory_bytes * (needed.sum() / fullness / device_memory_bytes.sum())
    runs = np.isfinite(forward_s)
    while not _packs(needed, memory, runs):
        memory = memory * 1.05
    return np.asarray(memory)


def _packs(needed: Floats, memory_bytes: Floats, runs: NDArray[np.bool_]) -> bool:
    """Whether largest first, each on the device with most memory left, finds a placement."""
    left = memory_bytes.copy()
    for node in np.argsort(-needed):
        device = int(np.argmax(np.where(runs[node], left, -1.0)))
        left[device] -= needed[node]
        if left[device] < 0:
            return False
    return True
