"""Published workloads as chains: Sailor, Galvatron, PipeEdge, DT-FM.

The numbers are those of the published files. What they lack is said where it is filled in.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, LinkOverride, Node
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.measurement import Measurement
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.errors import HeterpsError
from heterps_configs.importers import galvatron, pipeedge
from heterps_configs.importers.regions import load_region_links
from heterps_configs.library import load_profile
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.named import ChainCollection, NamedChain, collected
from heterps_envs.problem_sets.sailor_chains import sailor_chains

# Galvatron's tables are of Llama 2 7B with 2048 tokens; the files do not name the GPU, whose speed
# is that of an A100. It takes a backward pass for twice a forward pass.
GALVATRON_MODEL, GALVATRON_GPU, GALVATRON_BATCHES = "llama-7b", "A100-40G", (1, 4)
BACKWARD_OVER_FORWARD = 2.0
GALVATRON_LATENCY_S = 1e-5
PIPEEDGE_MODELS = ("google/vit-base-patch16-224", "google/vit-large-patch16-224")
PIPEEDGE_MICRO_BATCHES = 16
# Devices in each of DT-FM's regions in turn; bandwidth inside a region is a round figure.
REGION_DEVICES = ("A100-40G", "V100-32G", "T4")
REGION_MODELS = ("bert-large", "gpt2", "llama-7b")
DEVICES_PER_REGION = 2
REGION_LINK = Link(latency_s=1e-4, bandwidth_bytes_per_s=1.25e9)


def published_chains(workloads: Path) -> ChainCollection:
    """All published problems that a folder holds.

    Args:
        workloads: With a folder for each source: `sailor`, `galvatron`, `pipeedge`, `dt-fm`.

    Raises:
        HeterpsError: It holds none of them, or a file is missing or malformed.
    """
    readers = {
        "sailor": sailor_chains,
        "galvatron": _galvatron_chains,
        "pipeedge": _pipeedge_chains,
        "dt-fm": _region_chains,
    }
    read = [
        reader(workloads / name) for name, reader in readers.items() if (workloads / name).is_dir()
    ]
    if not read:
        raise HeterpsError(f"{workloads}: holds none of the folders {', '.join(readers)}")
    return ChainCollection(
        tuple(chain for each in read for chain in each.problems),
        {name: reason for each in read for name, reason in each.left_out.items()},
    )


def _galvatron_chains(folder: Path) -> ChainCollection:
    """Measured seconds, and the bytes of the shipped profile of the same model."""
    times = galvatron.load_forward_times(folder / "computation_profiling_bf16_llama2-7b_all.json")
    profile = load_profile(GALVATRON_MODEL)
    chains = []
    for nodes in (1, 2):
        stem = f"{nodes}nodes_8gpus_per_node.json"
        between = galvatron.load_point_to_point_bandwidths(folder / f"p2p_bandwidth_{stem}")
        reduce = galvatron.load_all_reduce_bandwidths(folder / f"allreduce_bandwidth_{stem}")
        inside = reduce[galvatron.GalvatronGroup(8, consecutive=True)]
        cluster = _equal_nodes(nodes, inside, min(between.values()))
        for size in GALVATRON_BATCHES:
            forward = times[galvatron.GalvatronBatch(size, 2048)]
            job = Job(micro_batch_size=size, global_batch_size=64)
            problem = Problem(_measured(profile, forward, size), cluster, job, nodes_apart="all")
            name = f"Galvatron Llama 2 7B, {nodes} x 8, micro-batch size {size}"
            chains.append(NamedChain(name, problem.tables))
    return collected(chains)


def _equal_nodes(nodes: int, inside_bytes_per_s: float, between_bytes_per_s: float) -> Cluster:
    inside, between = (
        Link(latency_s=GALVATRON_LATENCY_S, bandwidth_bytes_per_s=value)
        for value in (inside_bytes_per_s, between_bytes_per_s)
    )
    return Cluster(
        name="galvatron",
        nodes=tuple(
            Node(
                name=f"node-{index}",
                devices=(DeviceGroup(name=f"gpu-{index}", type=GALVATRON_GPU, count=8),),
                link=inside,
            )
            for index in range(nodes)
        ),
        inter_node_link=between,
    )


def _measured(
    profile: ModelProfile, forward: galvatron.GalvatronForward, size: int
) -> ModelProfile:
    """The profile with the seconds of a layer on every block, the rest shared by FLOPs."""
    flops = np.array([layer.forward_flops for layer in profile.layers], dtype=float)
    kinds = [layer.kind for layer in profile.layers]
    is_block = np.array([kinds.count(kind) > 1 for kind in kinds])
    others = np.where(is_block, 0.0, flops + 1.0)
    seconds = np.where(is_block, forward.layer_s, forward.other_s * others / others.sum())
    measurement = Measurement(
        device_type=GALVATRON_GPU,
        micro_batch_size=size,
        dtype=profile.dtype,
        forward_s=tuple(seconds),
        backward_s=tuple(BACKWARD_OVER_FORWARD * seconds),
    )
    return profile.changed(measurements=(measurement,))


def _pipeedge_chains(folder: Path) -> ChainCollection:
    """Inference: no backward pass and nothing kept for one; buffers as its scheduler counts them.

    Messages still cost both ways, as the cost model of training has it.
    """
    return collected(
        NamedChain(f"PipeEdge {name.partition('/')[2]}", _inference(folder, name))
        for name in PIPEEDGE_MODELS
    )


def _inference(folder: Path, name: str) -> CostTables:
    problem = pipeedge.load_problem(
        folder / "models.yml", folder / "device_types.yml", folder / "devices.yml", name
    )
    model, types = problem.model, problem.device_types
    num_layers, num_classes = len(model.memory_bytes), len(types)
    bandwidth = np.array([entry.bandwidth_bytes_per_s for entry in types])
    output = np.array(model.output_elements, dtype=float) * 4 * problem.batch_size
    buffers = 3 * (output + np.concatenate([[4.0 * model.input_elements], output[:-1]]))
    forward = np.array([entry.seconds for entry in types]).T.copy()
    output[-1] = 0.0
    return CostTables(
        num_micro_batches=PIPEEDGE_MICRO_BATCHES,
        is_gpipe=False,
        forward_s=forward,
        backward_s=np.zeros_like(forward),
        optimizer_s=np.zeros_like(forward),
        state_bytes=np.array(model.memory_bytes, dtype=float),
        gradient_bytes=np.zeros(num_layers),
        activation_bytes=np.zeros(num_layers),
        output_bytes=output,
        device_count=np.array([len(entry.hosts) for entry in types], np.int64),
        memory_bytes=np.array([entry.memory_bytes for entry in types]) - buffers.max(),
        price_usd_per_hour=np.ones(num_classes),
        latency_s=np.zeros((num_classes, num_classes)),
        inverse_bandwidth_s_per_byte=1 / np.minimum(bandwidth[:, None], bandwidth),
    )


def _region_chains(folder: Path) -> ChainCollection:
    """Shipped models on unequal devices in the ten regions."""
    links = load_region_links(folder / "region_delay_bandwidth.json")
    regions = sorted(links.regions)
    cluster = Cluster(
        name="dt-fm",
        nodes=tuple(
            Node(
                name=region,
                region=region,
                devices=(
                    DeviceGroup(
                        name=region.lower(),
                        type=REGION_DEVICES[index % len(REGION_DEVICES)],
                        count=DEVICES_PER_REGION,
                    ),
                ),
                link=REGION_LINK,
            )
            for index, region in enumerate(regions)
        ),
        inter_node_link=REGION_LINK,
        link_overrides=tuple(
            LinkOverride(between=(one, two), link=links.between(one, two))
            for index, one in enumerate(regions)
            for two in regions[index + 1 :]
        ),
    )
    chains = []
    for model in REGION_MODELS:
        profile = load_profile(model)
        job = Job.from_mapping({"dtype": profile.dtype})
        problem = Problem(profile, cluster, job, nodes_apart="all")
        chains.append(NamedChain(f"DT-FM {model}", problem.tables))
    return collected(chains)
