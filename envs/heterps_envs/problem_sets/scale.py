"""Whole problems of 256 to 2,048 devices: shipped models on drawn clusters of many nodes.

The sizes that neither the exact solver nor the sets of `test_sets` reach. Nothing of it is shared
with `heterps_envs.problem_sets.chains`, which training draws from. Nodes of one type are alike, so
that a class is a type; links are of named kinds, one between all nodes.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job
from heterps_configs.library import load_profile
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.development import INSIDE_LINKS

# Models with layers enough; each is as likely as any other.
MODELS = ("bert-large", "gpt2", "llama-7b", "llama-70b", "resnet-152", "vit-large")
MICRO_BATCHES = (64, 128, 256, 512, 1024)
# Named, so that the draws stay while the catalogue grows.
TYPES = (
    *("H200-141G", "H100-80G", "A100-80G", "A100-40G", "L40S", "A10G", "L4", "V100-32G"),
    *("V100-16G", "T4", "RTX-4090", "RTX-3090"),
)
NODE_SIZES = (4, 8)
# Of one data centre: over wide-area links nobody sums gradients of so many replicas.
BETWEEN_LINKS = (
    *("ethernet-25", "ethernet-40", "ethernet-100", "ethernet-200"),
    *("infiniband-edr", "infiniband-hdr", "infiniband-ndr"),
)


class ScaleDraw(NamedTuple):
    """How a set is drawn.

    Attributes:
        seed: Of the set.
        num_problems: Of the set.
        devices: Fewest and most devices of a cluster; the logarithms are even.
        types: The same of device types.
    """

    seed: int
    num_problems: int
    devices: tuple[int, int] = (256, 2048)
    types: tuple[int, int] = (4, 8)

    def problems(self, count: int = 0) -> list[Problem]:
        """The set, or its first problems; more of the same stream where `count` is larger."""
        return [
            _draw(np.random.default_rng([self.seed, index]), self)
            for index in range(count or self.num_problems)
        ]


# Choices are made on the first; tables quote the second.
SCALE_SETS: Mapping[str, ScaleDraw] = MappingProxyType(
    {
        "development-scale": ScaleDraw(2**61 + 16, 20),
        "scale": ScaleDraw(2**62 + 48, 30),
    }
)


def _draw(rng: np.random.Generator, draw: ScaleDraw) -> Problem:
    profile = load_profile(str(rng.choice(MODELS)))
    job = Job(dtype=profile.dtype, global_batch_size=int(rng.choice(MICRO_BATCHES)))
    return Problem(profile, _cluster(rng, draw), job)


def _cluster(rng: np.random.Generator, draw: ScaleDraw) -> Cluster:
    """Nodes of each type in drawn shares, and at least one of each."""
    types = rng.choice(TYPES, int(rng.integers(draw.types[0], draw.types[1] + 1)), replace=False)
    wanted = np.exp(rng.uniform(*np.log(draw.devices)))
    shares = rng.dirichlet(np.full(len(types), 2.0))
    nodes = []
    for kind, share in zip(types, shares, strict=True):
        size, link = int(rng.choice(NODE_SIZES)), str(rng.choice(INSIDE_LINKS))
        for index in range(max(1, round(wanted * share / size))):
            name = f"{kind}-{index}"
            group = {"name": name, "type": str(kind), "count": size}
            nodes.append({"name": name, "devices": [group], "link": link})
    between = str(rng.choice(BETWEEN_LINKS))
    return Cluster.from_mapping({"name": "drawn", "nodes": nodes, "inter_node_link": between})
