"""Problems of ten uneven layers on three classes of devices, for tests of several floors."""

from collections.abc import Callable
from typing import Any

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.problem import Problem

MakeProblem = Callable[..., Problem]

# (parameters in millions, GFLOP forward, activation MB, output MB) of one sample: two layers with
# much memory and little work, then work that shrinks.
LAYERS = [(90, 2, 4, 2), (60, 1, 4, 2), *[(12, 90 - 6 * i, 30 - 2 * i, 4) for i in range(8)]]


def _device_type(name: str, memory_gb: float, teraflops: float, price: float) -> dict[str, Any]:
    return {
        "name": name,
        "memory_bytes": int(memory_gb * 1e9),
        "peak_flops_per_s": {"float32": teraflops * 1e12},
        "memory_bandwidth_bytes_per_s": teraflops * 4e10,
        "price_usd_per_hour": price,
    }


def uneven_problem(
    *,
    counts: tuple[int, int, int] = (2, 3, 2),
    memory: float = 1.0,
    bandwidth_bytes_per_s: float = 1e10,
    **job: Any,
) -> Problem:
    """Ten uneven layers on three classes of devices in two nodes."""
    names = ("fast", "middle", "small")
    types = [
        _device_type("fast", 4.0 * memory, 40, 4.0),
        _device_type("middle", 3.0 * memory, 15, 1.0),
        _device_type("small", 1.5 * memory, 8, 0.4),
    ]
    link = {"latency_s": 1e-5, "bandwidth_bytes_per_s": bandwidth_bytes_per_s}
    groups = [
        {"name": name, "type": name, "count": count}
        for name, count in zip(names, counts, strict=True)
        if count
    ]
    cluster = {
        "name": "test",
        "device_types": types,
        "nodes": [
            {"name": f"node{index}", "devices": part, "link": link}
            for index, part in enumerate((groups[:1], groups[1:]))
            if part
        ],
        "inter_node_link": {**link, "bandwidth_bytes_per_s": bandwidth_bytes_per_s / 4},
    }
    layers = [
        LayerProfile(
            name=f"layer{index}",
            kind="block",
            num_parameters=int(parameters * 1e6),
            forward_flops=flops * 1e9,
            backward_flops=2 * flops * 1e9,
            activation_bytes=activation * 1e6,
            output_bytes=output * 1e6,
        )
        for index, (parameters, flops, activation, output) in enumerate(LAYERS)
    ]
    settings = {"global_batch_size": 16, "dtype": "float32", **job}
    return Problem(
        profile=ModelProfile(name="test", layers=tuple(layers)),
        cluster=Cluster.from_mapping(cluster),
        job=Job.from_mapping(settings),
    )
