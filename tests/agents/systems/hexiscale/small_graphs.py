"""Small graphs of devices, and every partition of them."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from heterps_envs.arrays import Floats, Integers


class SmallGraph(NamedTuple):
    """See `heterps_agents.systems.hexiscale.graph.Graph`."""

    counts: Integers
    weights: Floats
    bandwidth: Floats


def random_graph(seed: int, num_kinds: int, most: int = 1) -> SmallGraph:
    """Kinds of at most so many devices, of a few speeds and memories, on links of two sorts."""
    rng = np.random.default_rng(seed)
    weights = np.stack((rng.choice([1.0, 2.0, 4.0], num_kinds), rng.choice([8.0, 16.0], num_kinds)))
    bandwidth = rng.choice([1.0, 10.0, 0.0], (num_kinds, num_kinds), p=[0.6, 0.3, 0.1])
    bandwidth *= rng.uniform(0.8, 1.2, bandwidth.shape)
    bandwidth = np.triu(bandwidth) + np.triu(bandwidth, 1).T
    return SmallGraph(rng.integers(1, most + 1, num_kinds), weights, bandwidth)


def all_partitions(graph: SmallGraph, num_parts: int) -> Iterator[Integers]:
    """Every way to deal single devices to parts, none of which is empty."""
    kinds = np.repeat(np.arange(len(graph.counts)), graph.counts)
    for dealt in product(range(num_parts), repeat=len(kinds)):
        parts = np.zeros((num_parts, len(graph.counts)), np.int64)
        np.add.at(parts, (np.array(dealt), kinds), 1)
        if parts.sum(axis=1).all():
            yield parts
