"""Problems to develop and to choose by: what curves of training show. Not drawn as test sets are.

The second generator. Chains are cut out of the shipped model profiles, devices are of the whole
catalogue, links of named kinds, and seconds are those that a plan would estimate. Nothing of it is
shared with `heterps_envs.problem_sets.chains`, which training and the frozen test sets draw from;
its seeds are its own. So a choice by these problems has seen neither the sets that tables quote nor
the distribution that a policy was trained on.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.device import shipped_device_types
from heterps_configs.documents.job import Job
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.library import load_profile, shipped
from heterps_envs.closed_form.memory_packing import least_memory_scale
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.clusters import DRAWN_CPU

MICRO_BATCHES, GPIPE_SHARE = (4, 8, 16, 32, 64), 0.1
# Memory as a multiple of the least with which a placement is known, of so many problems; of the
# others too where that is more than the devices have.
TIGHT_SHARE, TIGHT_MEMORY = 0.3, (1.05, 1.6)
_FIRST_SEED = 2**61
# Kinds of links inside a node, and between nodes. Named, so that draws stay while kinds are added.
INSIDE_LINKS = (
    *("nvlink2", "nvlink3", "nvlink3-bridge", "nvlink4", "pcie3", "pcie4", "pcie5"),
    "infinity-fabric4",
)
BETWEEN_LINKS = (
    *("ethernet-10", "ethernet-25", "ethernet-40", "ethernet-100", "ethernet-200"),
    *("infiniband-edr", "infiniband-hdr", "infiniband-ndr", "same-region", "same-continent"),
)


class DevelopmentDraw(NamedTuple):
    """How a set is drawn.

    Attributes:
        seed: Of the set.
        num_problems: Of the set.
        layers: Fewest and most layers.
        classes: The same of device classes.
        count_range: The same of devices of one class.
    """

    seed: int
    num_problems: int
    layers: tuple[int, int]
    classes: tuple[int, int]
    count_range: tuple[int, int]

    def problems(self, count: int = 0) -> list[CostTables]:
        """The set; `count` problems of it, or more of the same stream."""
        return [
            _draw(np.random.default_rng([self.seed, index]), self)
            for index in range(count or self.num_problems)
        ]


# The sizes of the frozen sets whose optima are quick to prove. Curves of training show them.
DEVELOPMENT_CHAINS: Mapping[str, DevelopmentDraw] = MappingProxyType(
    {
        "development": DevelopmentDraw(_FIRST_SEED, 160, (8, 32), (2, 4), (1, 4)),
        "development-longer": DevelopmentDraw(_FIRST_SEED + 1, 60, (64, 96), (2, 4), (1, 4)),
        "development-more-types": DevelopmentDraw(_FIRST_SEED + 2, 60, (8, 32), (5, 6), (1, 3)),
    }
)
# Sizes where the exact solver stops: many classes, and many devices of each.
DEVELOPMENT_BEYOND: Mapping[str, DevelopmentDraw] = MappingProxyType(
    {
        "development-beyond-exact": DevelopmentDraw(
            _FIRST_SEED + 3, 30, (48, 128), (8, 12), (2, 4)
        ),
        "development-large": DevelopmentDraw(_FIRST_SEED + 4, 30, (24, 128), (4, 10), (8, 64)),
    }
)


def _draw(rng: np.random.Generator, sizes: DevelopmentDraw) -> CostTables:
    profiles = _profiles()
    profile = profiles[int(rng.integers(len(profiles)))]
    num_layers = int(rng.integers(sizes.layers[0], sizes.layers[1] + 1))
    job = Job(
        dtype=profile.dtype,
        global_batch_size=int(rng.choice(MICRO_BATCHES)),
        schedule="gpipe" if rng.random() < GPIPE_SHARE else "1f1b",
    )
    problem = Problem(profile, _cluster(rng, sizes), job, nodes_apart="all")
    return _with_memory(rng, _cut(rng, problem.tables, num_layers))


def _cut(rng: np.random.Generator, tables: CostTables, num_layers: int) -> CostTables:
    """So many layers one after another; a model that has fewer is repeated."""
    if num_layers <= tables.num_layers:
        first = int(rng.integers(tables.num_layers - num_layers + 1))
        kept = np.arange(first, first + num_layers)
    else:
        kept = np.arange(num_layers) % tables.num_layers
    output_bytes = tables.output_bytes[kept].copy()
    # Where the model begins anew its last layer sends what it received; at the end nothing is sent.
    output_bytes[kept == tables.num_layers - 1] = tables.output_bytes[-2]
    output_bytes[-1] = 0.0
    of_layers = ("forward_s", "backward_s", "optimizer_s", "state_bytes", "gradient_bytes")
    cut = {name: getattr(tables, name)[kept] for name in (*of_layers, "activation_bytes")}
    return replace(tables, **cut, output_bytes=output_bytes)


def _with_memory(rng: np.random.Generator, tables: CostTables) -> CostTables:
    least = least_memory_scale(
        tables.state_bytes, tables.activation_bytes, tables.memory_bytes, tables.device_count,
        tables.num_micro_batches, tables.is_gpipe, rng,
    )  # fmt: skip
    tight = least * float(rng.uniform(*TIGHT_MEMORY))
    is_tight = rng.random() < TIGHT_SHARE
    return replace(
        tables, memory_bytes=tables.memory_bytes * (tight if is_tight else max(1, tight))
    )


def _cluster(rng: np.random.Generator, sizes: DevelopmentDraw) -> Cluster:
    """A node for each class: types of the catalogue, and kinds of links inside and between."""
    num_classes = int(rng.integers(sizes.classes[0], sizes.classes[1] + 1))
    types = rng.choice(_device_types(), num_classes, replace=False)
    nodes = [
        {
            "name": f"node-{index}",
            "devices": [
                {
                    "name": f"class-{index}",
                    "type": str(name),
                    "count": int(rng.integers(sizes.count_range[0], sizes.count_range[1] + 1)),
                }
            ],
            "link": str(rng.choice(INSIDE_LINKS)),
        }
        for index, name in enumerate(types)
    ]
    return Cluster.from_mapping(
        {"name": "drawn", "nodes": nodes, "inter_node_link": str(rng.choice(BETWEEN_LINKS))}
    )


@lru_cache(maxsize=1)
def _profiles() -> tuple[ModelProfile, ...]:
    return tuple(load_profile(name) for name in shipped("models"))


@lru_cache(maxsize=1)
def _device_types() -> tuple[str, ...]:
    """All accelerators, and a whole CPU."""
    types = shipped_device_types().values()
    return (*(entry.name for entry in types if entry.kind == "gpu"), DRAWN_CPU)
