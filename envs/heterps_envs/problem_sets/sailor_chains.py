"""Sailor's profiled models on its clusters as chains; a tensor-parallel group is one device.

Seconds, bytes and links are those of its files; memory is counted as its own check counts it.
Prices are the shipped catalogue's of the same or the nearest type: its files have none.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.device import device_type_named
from heterps_configs.errors import HeterpsError
from heterps_configs.importers import sailor
from heterps_configs.importers.json_entry import Entry
from heterps_configs.importers.sailor import SailorEnd, SailorModel, SailorShape
from heterps_envs.arrays import Floats, Integers
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem_sets.named import ChainCollection, NamedChain, memory_shortage

FLOAT_BYTES = 4
# Sailor's check: weight, gradient, two moments and copies for communication; and what its runtime
# needs on a GPU without and with tensor parallelism.
STATE_BYTES_PER_PARAMETER = 24
RUNTIME_BYTES_ALONE, RUNTIME_BYTES_PARALLEL = 2e9, 3e9
PRICED_AS: Mapping[str, str] = {
    "A100-40": "A100-40G",
    "A100-80": "A100-80G",
    "GH-96": "H100-80G",
    "V100-16": "V100-16G",
    "RTX-3090": "RTX-3090",
    "Titan-RTX": "RTX-3090",
    "RTX-2080": "T4",
}
# Two unequal clusters whose exact optima others have published, and larger mixes.
CLUSTERS: Mapping[str, Mapping[str, int]] = {
    "1 A100 + 2 V100": {"A100-40": 1, "V100-16": 2},
    "3 unequal RTX": {"RTX-3090": 1, "Titan-RTX": 1, "RTX-2080": 1},
    "16 unequal RTX": {"RTX-3090": 8, "Titan-RTX": 4, "RTX-2080": 4},
    "8 A100 + 8 V100": {"A100-40": 8, "V100-16": 8},
    "4 GH + 8 A100 + 16 V100": {"GH-96": 4, "A100-40": 8, "V100-16": 16},
}
LARGEST_MICRO_BATCH, DEFAULT_GLOBAL_BATCH = 4, 1024


class _Files(NamedTuple):
    """What Sailor's folder holds for one model."""

    model: SailorModel
    cluster: sailor.SailorCluster
    links: sailor.SailorLinks
    inside: Mapping[tuple[str, int], sailor.SailorLink]
    global_batch_size: int


def sailor_chains(folder: Path) -> ChainCollection:
    """All models on all clusters for which seconds and links were measured.

    Raises:
        HeterpsError: A file is missing or malformed.
    """
    simulations = folder / "Planner" / "simulations"
    clusters = {
        name: {(gpu, ""): count for gpu, count in gpus.items()} for name, gpus in CLUSTERS.items()
    }
    clusters |= _traces(simulations / "configs")
    profiles, sizes = simulations / "profiles_tmp.json", folder / "Planner" / "llm_info.json"
    links = sailor.load_links(folder / "providers" / "multizone_bandwidths_het.json")
    inside = sailor.load_intra_node_links(folder / "providers" / "intra_node_bandwidths.json")
    cluster = sailor.load_cluster(simulations / "configs" / "basic_cluster_config.json")
    problems, left_out = [], {}
    for name in sorted(Entry.from_json(profiles).mapping()):
        model = sailor.load_model(profiles, sizes, name)
        batch = _global_batch_size(simulations / "configs", name)
        files = _Files(model, cluster, links, inside, batch)
        for label, gpus in clusters.items():
            found = _first_fitting(files, gpus)
            if isinstance(found, str):
                left_out[f"Sailor {name}, {label}"] = found
            else:
                problems.append(NamedChain(f"Sailor {name}, {label}", found))
    return ChainCollection(tuple(problems), left_out)


def _traces(folder: Path) -> dict[str, dict[tuple[str, str], int]]:
    """The first cluster of every trace: GPUs by type and zone."""
    clusters = {}
    for file in sorted(folder.glob("gpu_trace_*.csv")):
        with file.open(newline="") as lines:
            row = next(csv.DictReader(lines))
        ends = {name: name.partition("_") for name in row if "_" in name}
        clusters[file.stem.removeprefix("gpu_trace_")] = {
            (gpu, zone): int(row[name]) for name, (gpu, _, zone) in ends.items()
        }
    return clusters


def _global_batch_size(folder: Path, model: str) -> int:
    for file in sorted(folder.glob("training_config_*.json")):
        top = Entry.from_json(file)
        if top["model"].text() == model:
            return top["global_batch_size"].integer(minimum=1)
    return DEFAULT_GLOBAL_BATCH


def _first_fitting(files: _Files, gpus: Mapping[tuple[str, str], int]) -> CostTables | str:
    """With the smallest degree that fits, then the largest micro-batch; or why there is none."""
    shapes = _common_shapes(files.model, {gpu: count for (gpu, _), count in gpus.items()})
    least = math.inf
    for size, degree in shapes:
        tables = _tables(files, gpus, size, degree)
        if isinstance(tables, str):
            return tables
        shortage = memory_shortage(tables)
        if shortage <= 1:
            return tables
        least = min(least, shortage)
    if not shapes:
        return "its seconds were not measured on all types"
    return f"needs {least:.2f} times the memory of the cluster"


def _tables(
    files: _Files, gpus: Mapping[tuple[str, str], int], size: int, degree: int
) -> CostTables | str:
    """The problem with groups of `degree` GPUs; why there is none where a link is not known."""
    ends = [SailorEnd(gpu, degree, zone or files.cluster.zone) for gpu, zone in gpus]
    counts = np.array([count // degree for count in gpus.values()], np.int64)
    sizes = files.model.layer_sizes(degree)
    parameters = np.array([layer.parameters for layer in sizes], dtype=float)
    output = np.array([layer.output for layer in sizes], dtype=float) * FLOAT_BYTES * size
    output[-1] = 0.0
    try:
        inverse_bandwidth = _inverse_bandwidth(files, ends, counts, float(output.max()))
    except HeterpsError as error:
        return str(error)
    times = [files.model.layer_times(SailorShape(end.gpu, size, degree)) for end in ends]
    seconds = np.array(times, dtype=float).transpose(2, 1, 0).copy()
    runtime = RUNTIME_BYTES_ALONE if degree == 1 else RUNTIME_BYTES_PARALLEL
    memory = [files.cluster.node_type(end.gpu).memory_bytes - runtime for end in ends]
    prices = [device_type_named(PRICED_AS[end.gpu]).price_usd_per_hour for end in ends]
    return CostTables(
        num_micro_batches=math.ceil(files.global_batch_size / size),
        is_gpipe=False,
        forward_s=seconds[0],
        backward_s=seconds[1],
        optimizer_s=seconds[2],
        state_bytes=parameters * STATE_BYTES_PER_PARAMETER,
        gradient_bytes=parameters * FLOAT_BYTES,
        activation_bytes=np.array([layer.activation_memory for layer in sizes], dtype=float)
        * FLOAT_BYTES
        * size,
        output_bytes=output,
        device_count=counts,
        memory_bytes=np.array(memory, dtype=float),
        price_usd_per_hour=degree * np.array(prices),
        latency_s=np.zeros((len(ends), len(ends))),
        inverse_bandwidth_s_per_byte=inverse_bandwidth,
    )


def _common_shapes(model: SailorModel, gpus: Mapping[str, int]) -> list[tuple[int, int]]:
    """Micro-batch sizes and degrees that were measured on all types; small degrees first."""
    found = []
    for degree, negative in sorted(
        {(shape.tensor_parallel, -shape.micro_batch_size) for shape in model.times}
    ):
        wanted = [SailorShape(gpu, -negative, degree) for gpu in gpus]
        known = degree in model.sizes and all(shape in model.times for shape in wanted)
        if known and -negative <= LARGEST_MICRO_BATCH and degree <= min(gpus.values()):
            found.append((-negative, degree))
    return found


def _inverse_bandwidth(
    files: _Files, ends: Sequence[SailorEnd], counts: Integers, num_bytes: float
) -> Floats:
    """(T, T) at the size of the largest message, of the slower direction."""
    out = np.zeros((len(ends), len(ends)))
    for i, one in enumerate(ends):
        for j, two in enumerate(ends):
            if i == j and counts[i] == 1:
                continue
            links = [files.links.between(one, two), files.links.between(two, one)]
            total = one.num_gpus * int(counts[i])
            if i == j and total <= files.cluster.node_type(one.gpu).gpus_per_node:
                links = [_inside(files, one.gpu, total)]
            out[i, j] = max(link.send_s(num_bytes) for link in links) / num_bytes
    return out


def _inside(files: _Files, gpu: str, num_gpus: int) -> sailor.SailorLink:
    """The link inside a node, measured with as many GPUs or the next larger number."""
    known = sorted(count for name, count in files.inside if name == gpu and count >= num_gpus)
    if not known:
        raise HeterpsError(f"no link inside a node of {num_gpus} {gpu}")
    return files.inside[gpu, known[0]]
