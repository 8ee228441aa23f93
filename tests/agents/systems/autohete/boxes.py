"""Problems of one box: a few layers with unlike costs, and GPUs with a link to their host."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.problem import Problem


def random_layers(rng: np.random.Generator, number: int) -> list[LayerProfile]:
    """Layers that save what crosses their cuts, or not; some are equal to the one in front."""
    found: list[LayerProfile] = []
    for index in range(number):
        if found and rng.random() < 0.3:
            found.append(found[-1].changed(name=f"layer{index}"))
            continue
        flops, activation = float(rng.uniform(1e9, 9e10)), float(rng.uniform(2e6, 9e7))
        output = float(rng.uniform(1e6, activation / 2))
        found.append(
            LayerProfile(
                name=f"layer{index}",
                kind="block",
                num_parameters=int(rng.uniform(1e6, 3e7)),
                forward_flops=flops,
                backward_flops=2 * flops,
                activation_bytes=activation,
                output_bytes=output,
                saved_input_bytes=float(rng.choice([0.0, 0.1])) * activation,
                saved_output_bytes=float(rng.choice([0.0, 0.5, 1.0])) * output,
                shared_bytes=float(rng.choice([0.0, 1e6])),
            )
        )
    return found


def box(
    layers: Sequence[LayerProfile],
    memory_gb: float,
    *,
    count: int = 1,
    host_gb_per_s: float | None = 12.0,
    slow_memory_gb: float | None = None,
    **job: Any,
) -> Problem:
    """A node of equal GPUs; with `slow_memory_gb` one more, three times as slow.

    Args:
        layers: Of the model.
        memory_gb: Of a GPU.
        count: Of GPUs.
        host_gb_per_s: Between a GPU and its host; None: there is no such link.
        slow_memory_gb: Of the slow one.
        job: Its settings.
    """
    kinds = [("fast", memory_gb, 1, count)]
    if slow_memory_gb is not None:
        kinds.append(("slow", slow_memory_gb, 3, 1))
    types = [
        {
            "name": name,
            "memory_bytes": int(memory * 1e9),
            "peak_flops_per_s": {"float32": 3e13 / slowness},
            "memory_bandwidth_bytes_per_s": 1e12 / slowness,
            "price_usd_per_hour": 1.0,
            "host_bandwidth_bytes_per_s": None if host_gb_per_s is None else host_gb_per_s * 1e9,
        }
        for name, memory, slowness, _ in kinds
    ]
    cluster = {
        "name": "box",
        "device_types": types,
        "nodes": [
            {
                "name": "node",
                "devices": [{"name": e[0], "type": e[0], "count": e[3]} for e in kinds],
                "link": {"latency_s": 1e-5, "bandwidth_bytes_per_s": 2e10},
            }
        ],
    }
    settings = {"global_batch_size": 8, "dtype": "float32", **job}
    return Problem(
        profile=ModelProfile(name="test", layers=tuple(layers)),
        cluster=Cluster.from_mapping(cluster),
        job=Job.from_mapping(settings),
    )
