"""Problems that the tests of the planners share."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from heterps_agents.learned.policy import Policy
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import LayerProfile, ModelProfile
from heterps_envs.environments.stage.state import feature_sizes
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


@pytest.fixture
def make_problem() -> MakeProblem:
    """Builds problems of ten uneven layers on three classes of devices in two nodes."""

    def make(
        *,
        counts: tuple[int, int, int] = (2, 3, 2),
        memory: float = 1.0,
        bandwidth_bytes_per_s: float = 1e10,
        **job: Any,
    ) -> Problem:
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

    return make


@pytest.fixture(scope="session")
def random_policy() -> Policy:
    """An untrained policy: what the search alone guarantees must hold for it too."""
    return untrained(with_prices=False)


@pytest.fixture(scope="session")
def random_price_policy() -> Policy:
    """The same, which reads the features of prices."""
    return untrained(with_prices=True)


def untrained(with_prices: bool) -> Policy:
    """Random weights."""
    rng, hidden = np.random.default_rng(0), 16
    candidate_features, state_features = feature_sizes(with_prices)
    context = 2 * hidden + state_features
    sizes = {
        "candidate_in": candidate_features,
        "state_in": state_features,
        "candidate_hidden": hidden,
        "score_candidate": hidden,
        "score_context": context,
        "value_context": context,
    }
    weights = {
        f"{name}.weight": rng.normal(0, size**-0.5, (hidden, size)) for name, size in sizes.items()
    }
    for name in ("candidate_in", "candidate_hidden", "score_candidate", "value_context"):
        weights[f"{name}.bias"] = np.zeros(hidden)
    for name in ("score_out", "value_out"):
        weights[f"{name}.weight"] = rng.normal(0, hidden**-0.5, (1, hidden))
        weights[f"{name}.bias"] = np.zeros(1)
    return Policy(weights, {})
