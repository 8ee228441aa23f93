"""Problems with hostile corners: nothing, next to nothing, and far too much of everything.

Every number is drawn from what documents allow, their ends far more often than a user would write
them: memories that hold no layer, layers without bytes or seconds, links of a byte per second, one
layer, one device, one sample, more devices than layers. Some leave tensor-parallel groups,
recomputation and sharded state to the planner. Deterministic by seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.problem import Problem

MEMORIES = (1, 4096, 3 * 10**8, 10**9, 4 * 10**9, 16 * 10**9, 80 * 10**9, 10**15)
PEAKS = (1e3, 1e9, 1e12, 1e14, 1e21)
BANDWIDTHS = (1.0, 1e3, 1e8, 1e10, 1e12, 1e18)
LATENCIES = (0.0, 1e-12, 1e-6, 1e-3, 10.0, 1e6)
PRICES = (0.0, 1e-3, 0.5, 3.0, 1e6)
BYTES = (0.0, 1.0, 1e3, 1e6, 1e8, 1e10, 1e15)
FLOPS = (0.0, 1.0, 1e6, 1e9, 1e12, 1e20)
SECONDS = (0.0, 1e-15, 1e-6, 1e-3, 1.0, 1e9)
PARAMETERS = (0, 1, 1000, 10**6, 10**8, 10**12)
MICRO_BATCHES = (1, 2, 3, 4, 8, 31, 64)
FLOORS = (1e-12, 1e-3, 1.0, 1e3, 1e12)
# Of the problems, those whose every number may be a corner; the others have a few of them, so that
# there is something to plan.
WILD_SHARE = 0.35
# Of the problems, those that leave more to a planner than devices, cuts and replicas.
STRATEGY_SHARE = 0.4
DEGREES = ((), (1, 2), (1, 2, 4), (2,), (1, 3, 8), (70,))


def draw_problem(seed: int, index: int) -> Problem:
    """Problem `index`; it depends on `seed` and `index` alone."""
    rng = np.random.default_rng([seed, index])
    wildness = 1.0 if rng.random() < WILD_SHARE else float(rng.choice([0.02, 0.1, 0.3]))
    draw = _Drawing(rng, wildness)
    profile, cluster = draw.profile(), draw.cluster()
    return Problem(
        ModelProfile.from_mapping(draw.measured(profile, cluster)),
        Cluster.from_mapping(cluster),
        Job.from_mapping(draw.job()),
        strategy=draw.strategy(),
    )


class _Drawing:
    """Random numbers, and how often they are corners."""

    def __init__(self, rng: np.random.Generator, wildness: float) -> None:
        self.rng, self.wildness = rng, wildness

    def number(self, corners: Sequence[float], low: float, high: float) -> float:
        """A corner, or something usual between two numbers, evenly by its logarithm."""
        if self.rng.random() < self.wildness:
            return float(corners[int(self.rng.integers(len(corners)))])
        return float(np.exp(self.rng.uniform(np.log(low), np.log(high))))

    def whole(self, corners: Sequence[int], low: float, high: float) -> int:
        """The same, as a whole number."""
        return round(self.number(corners, low, high))

    def profile(self) -> dict[str, Any]:
        """A chain of few layers, sometimes all alike."""
        count = int(self.rng.choice([1, 1, 2, 3, 4, 6, 8, 12, 24]))
        layers = [self._layer() for _ in range(count)]
        if self.rng.random() < 0.3:
            layers = [layers[0]] * count
        named = [{"name": f"layer{index}", **layer} for index, layer in enumerate(layers)]
        return {"name": "hostile", "dtype": "float32", "layers": named}

    def _layer(self) -> dict[str, Any]:
        forward = self.number(FLOPS, 1e7, 1e11)
        layer = {
            "kind": "layer",
            "num_parameters": self.whole(PARAMETERS, 1e4, 1e8),
            "forward_flops": forward,
            "backward_flops": 2 * forward if self.rng.random() < 0.8 else 0.0,
            "activation_bytes": self.number(BYTES, 1e4, 1e8),
            "output_bytes": self.number(BYTES, 1e3, 1e7),
            "memory_traffic_bytes": self.number(BYTES, 1e3, 1e8),
            "shared_bytes": self.number(BYTES, 1, 1e6) if self.rng.random() < 0.1 else 0.0,
        }
        return {**layer, "tensor_split": self._split(layer)} if self.rng.random() < 0.5 else layer

    def _split(self, layer: dict[str, Any]) -> dict[str, Any]:
        """What of a layer its groups divide: nothing, some of it, or all."""
        part = float(self.rng.choice([0.0, 0.7, 1.0]))
        sums = [self.number(BYTES, 1e3, 1e7) for _ in range(int(self.rng.integers(3)))]
        return {
            "unit": "columns",
            "num_units": int(self.rng.choice([1, 2, 3, 8, 32, 10**6])),
            "parameters": int(part * layer["num_parameters"]),
            "forward_flops": part * layer["forward_flops"],
            "backward_flops": part * layer["backward_flops"],
            "activation_bytes": part * layer["activation_bytes"],
            "memory_traffic_bytes": part * layer["memory_traffic_bytes"],
            "forward_sums": sums,
            "backward_sums": sums,
        }

    def measured(self, profile: dict[str, Any], cluster: dict[str, Any]) -> dict[str, Any]:
        """The profile, sometimes with measurements of some of the cluster's types."""
        measurements = []
        for entry in cluster["device_types"]:
            if self.rng.random() < 0.3:
                seconds = [self.number(SECONDS, 1e-4, 1e-1) for _ in profile["layers"]]
                backward = [2 * s if s < 1 else s for s in seconds]
                measurements.append(
                    {
                        "device_type": entry["name"],
                        "micro_batch_size": int(self.rng.choice([1, 2, 8])),
                        "forward_s": seconds,
                        "backward_s": backward,
                    }
                )
        return {**profile, "measurements": measurements}

    def cluster(self) -> dict[str, Any]:
        """A few types of devices on a few nodes, in one or two regions."""
        types = [self._device_type(f"type{i}") for i in range(int(self.rng.integers(1, 5)))]
        nodes = []
        for index in range(int(self.rng.choice([1, 1, 2, 3, 6]))):
            groups = [
                {
                    "name": f"n{index}g{group}",
                    "type": types[int(self.rng.integers(len(types)))]["name"],
                    "count": int(self.rng.choice([1, 1, 2, 3, 4, 8, 70])),
                }
                for group in range(int(self.rng.integers(1, 3)))
            ]
            region = str(self.rng.choice(["here", "here", "there"]))
            link = self._link()
            nodes.append({"name": f"n{index}", "region": region, "devices": groups, "link": link})
        between = {"inter_node_link": self._link(), "inter_region_link": self._link()}
        return {"name": "hostile", "device_types": types, "nodes": nodes, **between}

    def _device_type(self, name: str) -> dict[str, Any]:
        return {
            "name": name,
            "kind": str(self.rng.choice(["gpu", "cpu"])),
            "memory_bytes": self.whole(MEMORIES, 1e9, 1e11),
            "peak_flops_per_s": {"float32": self.number(PEAKS, 1e11, 1e15)},
            "memory_bandwidth_bytes_per_s": self.number(BANDWIDTHS, 1e10, 1e12),
            "price_usd_per_hour": self.number(PRICES, 0.1, 10),
        }

    def _link(self) -> dict[str, float]:
        return {
            "latency_s": self.number(LATENCIES, 1e-7, 1e-3),
            "bandwidth_bytes_per_s": self.number(BANDWIDTHS, 1e8, 1e12),
        }

    def job(self) -> dict[str, Any]:
        """Any schedule and objective, with a floor now and then."""
        size = int(self.rng.choice([1, 1, 2, 16, 1000]))
        micro_batches = int(self.rng.choice(MICRO_BATCHES))
        rest = int(self.rng.integers(size)) if micro_batches > 1 else 0
        floor = self.number(FLOORS, 0.1, 100) if self.rng.random() < 0.25 else None
        return {
            "global_batch_size": size * micro_batches - rest,
            "micro_batch_size": size,
            "dtype": "float32",
            "optimizer": str(self.rng.choice(["adamw", "sgd"])),
            "schedule": str(
                self.rng.choice(["1f1b", "1f1b", "gpipe", "interleaved", "zero-bubble"])
            ),
            "objective": str(self.rng.choice(["throughput", "throughput", "price"])),
            "min_throughput_samples_per_s": floor,
        }

    def strategy(self) -> Strategy:
        """What else a planner may choose: mostly nothing."""
        if self.rng.random() >= STRATEGY_SHARE:
            return Strategy()
        chosen = {
            "tensor_parallel": DEGREES[int(self.rng.integers(len(DEGREES)))],
            "recompute": str(self.rng.choice(["never", "full", "auto", "auto"])),
            "shard_state": str(self.rng.choice(["never", "auto"])),
        }
        strategy: Strategy = Strategy.from_mapping(chosen)
        return strategy
