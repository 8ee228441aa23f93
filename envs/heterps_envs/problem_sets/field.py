"""Sixty problems in six families on which all planners meet, published ones and ours.

A problem is a number of devices, a cluster of that size (`field_clusters`), a model that it has
room for, shipped or drawn (`model_families`), and a batch. What `heterps place` leaves open is
open. A seed is a set: `SEEDS["development"]` to choose and debug by, `SEEDS["frozen"]` to judge by.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.library import load_profile
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field_clusters import CLUSTERS
from heterps_envs.problem_sets.model_families import ModelLayers, draw_model

SEEDS: Mapping[str, int] = MappingProxyType({"development": 2210, "frozen": 2211})
# Devices of the ten problems of a family; families of one or two nodes have few hundreds.
SIZES: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "two-type-racks": (4, 8, 8, 12, 16, 24, 32, 48, 64, 256),
        "three-type-racks": (6, 8, 12, 12, 16, 24, 32, 48, 64, 192),
        "spot-regions": (4, 6, 8, 8, 12, 16, 16, 24, 32, 48),
        "home-boxes": (4, 4, 5, 6, 6, 8, 8, 10, 12, 16),
        "one-pod": (4, 8, 8, 16, 16, 32, 32, 64, 128, 512),
        "volunteers": (4, 6, 8, 8, 12, 16, 16, 24, 32, 64),
    }
)
FAMILIES = tuple(CLUSTERS)
SHIPPED = ("bert-large", "ctr", "gpt2", "llama-7b", "llama-70b", "resnet-152", "vit-large")
DRAWN = ("transformer", "moe", "cnn", "unet", "multi-tower")
DRAWN_SHARE = 0.3
DRAWN_LAYERS = (12, 48)
# A model has room: its state takes no more of all memory, its largest layer no more of a device's,
# what one sample keeps no more of all memory.
STATE_SHARE, LAYER_SHARE, KEPT_SHARE = 0.5, 0.5, 0.25
# And is no toy beside the cluster: its state takes so much of all memory.
LEAST_SHARE = 0.004
SAMPLES_PER_DEVICE, LEAST_BATCH, MOST_BATCH = (2, 4, 8), 16, 1024
_ATTEMPTS = 200
# What `heterps place` leaves open where nobody says otherwise.
OPEN = Strategy(tensor_parallel=(), recompute="auto", shard_state="auto", chooses_micro_batch=True)


class FieldCase(NamedTuple):
    """Which problem: a family, and which of its ten."""

    family: str
    number: int

    @property
    def name(self) -> str:
        """Such as `one-pod/3`."""
        return f"{self.family}/{self.number}"


CASES = tuple(
    FieldCase(family, number) for family in FAMILIES for number in range(len(SIZES[family]))
)


def field_problem(case: FieldCase, seed: int) -> Problem:
    """The problem of a case; it depends on the case and the seed alone.

    Args:
        case: One of `CASES`.
        seed: One of `SEEDS`, or any other set.
    """
    rng = np.random.default_rng([seed, FAMILIES.index(case.family), case.number])
    cluster = CLUSTERS[case.family](rng, SIZES[case.family][case.number])
    # Old cards have no bfloat16 in hardware.
    job = Job(dtype="float16")
    profile = _profile(rng, cluster, job)
    samples = len(cluster.devices) * int(rng.choice(SAMPLES_PER_DEVICE))
    batch = 2 ** round(float(np.log2(np.clip(samples, LEAST_BATCH, MOST_BATCH))))
    job = job.changed(global_batch_size=batch)
    return Problem(profile, cluster, job, strategy=OPEN)


def described(problem: Problem) -> str:
    """A problem in a line: model, batch, devices, links."""
    counts: dict[str, int] = {}
    for device in problem.cluster.devices:
        counts[device.type.name] = counts.get(device.type.name, 0) + 1
    devices = " + ".join(f"{count} {kind}" for kind, count in counts.items())
    nodes = len(problem.cluster.nodes)
    return (
        f"{problem.profile.name}, batch {problem.job.global_batch_size}, on {devices} "
        f"in {nodes} node{'s' if nodes > 1 else ''}"
    )


def _profile(rng: np.random.Generator, cluster: Cluster, job: Job) -> ModelProfile:
    """A model that the cluster has room for, and that fills some of it; else one with room."""
    spare: ModelProfile | None = None
    for _ in range(_ATTEMPTS):
        found = _any_profile(rng)
        if not _has_room(found, cluster, job):
            continue
        memory = sum(device.memory_bytes for device in cluster.devices)
        if _state_bytes(found, job) >= LEAST_SHARE * memory:
            return found
        spare = spare or found
    assert spare is not None, "the smallest shipped model has room on every cluster"
    return spare


def _any_profile(rng: np.random.Generator) -> ModelProfile:
    if rng.random() >= DRAWN_SHARE:
        return _shipped(str(rng.choice(SHIPPED)))
    family, num_layers = str(rng.choice(DRAWN)), int(rng.integers(*DRAWN_LAYERS))
    return drawn_profile(family, draw_model(family, rng, num_layers))


@cache
def _shipped(name: str) -> ModelProfile:
    return load_profile(name)


def drawn_profile(name: str, model: ModelLayers) -> ModelProfile:
    """A profile of drawn layers; what they are for a micro-batch is one sample here."""
    last = len(model.flops) - 1
    is_language = name in ("transformer", "moe")

    def kind(index: int) -> str:
        ends = {0: "embedding", last: "head"} if is_language else {}
        return ends.get(index, "block")

    layers = tuple(
        LayerProfile(
            name=f"layer{index}",
            kind=kind(index),
            num_parameters=int(model.parameters[index]),
            forward_flops=float(model.flops[index]),
            backward_flops=2 * float(model.flops[index]),
            activation_bytes=float(model.activation_bytes[index]),
            output_bytes=float(model.output_bytes[index]) if index < last else 0.0,
            memory_traffic_bytes=float(model.activation_bytes[index]),
        )
        for index in range(last + 1)
    )
    return ModelProfile(name=name, dtype="float16", layers=layers)


def _has_room(profile: ModelProfile, cluster: Cluster, job: Job) -> bool:
    memory = sum(device.memory_bytes for device in cluster.devices)
    largest = max(device.memory_bytes for device in cluster.devices)
    layer = max(
        layer.num_parameters * job.state_bytes_per_parameter + layer.activation_bytes
        for layer in profile.layers
    )
    kept = sum(layer.activation_bytes for layer in profile.layers)
    has_state = _state_bytes(profile, job) <= STATE_SHARE * memory
    return has_state and layer <= LAYER_SHARE * largest and kept <= KEPT_SHARE * memory


def _state_bytes(profile: ModelProfile, job: Job) -> float:
    parameters = sum(layer.num_parameters for layer in profile.layers)
    return float(parameters * job.state_bytes_per_parameter)
