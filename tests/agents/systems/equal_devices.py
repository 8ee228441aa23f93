"""Problems of equal layers on equal devices."""

from __future__ import annotations

from typing import Any

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.problem import Problem


def equal_problem(
    *,
    num_nodes: int,
    devices_of_a_node: int,
    more_on_the_last: int = 0,
    num_layers: int = 8,
    num_parameters: int = 1_000_000,
    memory_bytes: int = 4_000_000_000,
    **job: Any,
) -> Problem:
    """Layers of 60 GFLOP and 100 MB of activations; 16 micro-batches."""
    kind = {
        "name": "card",
        "memory_bytes": memory_bytes,
        "peak_flops_per_s": {"float32": 1e13},
        "memory_bandwidth_bytes_per_s": 1e12,
        "price_usd_per_hour": 1.0,
    }
    link = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e10}
    nodes = [
        {
            "name": f"node{index}",
            "link": link,
            "devices": [
                {
                    "name": f"card{index}",
                    "type": "card",
                    "count": devices_of_a_node + more_on_the_last * (index == num_nodes - 1),
                }
            ],
        }
        for index in range(num_nodes)
    ]
    cluster = {
        "name": "equal", "device_types": [kind], "nodes": nodes, "inter_node_link": link,
    }  # fmt: skip
    layer = {
        "kind": "block",
        "num_parameters": num_parameters,
        "forward_flops": 2e10,
        "backward_flops": 4e10,
        "activation_bytes": 1e8,
        "output_bytes": 1e6,
    }
    layers = (
        LayerProfile.model_validate({"name": f"layer{n}", **layer}) for n in range(num_layers)
    )
    return Problem(
        ModelProfile(name="equal", layers=tuple(layers)),
        Cluster.from_mapping(cluster),
        Job.from_mapping({"global_batch_size": 16, "dtype": "float32", **job}),
    )
