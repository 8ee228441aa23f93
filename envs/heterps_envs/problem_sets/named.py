"""Problems with the names that tables call them by."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import NamedTuple

import numpy as np

from heterps_envs.closed_form.memory_packing import least_memory_scale
from heterps_envs.cost_tables import CostTables
from heterps_envs.graphs.problem import GraphTables
from heterps_envs.graphs.sources import SourceGraph

# Searches for a packing; each begins its exchanges elsewhere.
_ATTEMPTS = 4


class NamedChain(NamedTuple):
    """A chain and what it is called, for example `gpt2 on eight-types`."""

    name: str
    tables: CostTables


class ChainCollection(NamedTuple):
    """A set of chains, and by name why others are not in it."""

    problems: tuple[NamedChain, ...]
    left_out: Mapping[str, str]


class GraphCollection(NamedTuple):
    """A set of graphs, and by name why others are not in it."""

    problems: tuple[SourceGraph, ...]
    left_out: Mapping[str, str]


def graph_packs(tables: GraphTables) -> bool:
    """Whether a simple packing fits: largest node first, on the device with most memory left."""
    left = tables.device_memory_bytes.astype(float).copy()
    runs = np.isfinite(tables.forward_s) & np.isfinite(tables.backward_s)
    for node in np.argsort(-tables.memory_bytes, kind="stable"):
        device = int(np.argmax(np.where(runs[node], left, -np.inf)))
        left[device] -= tables.memory_bytes[node]
        if left[device] < 0 or not runs[node, device]:
            return False
    return True


def memory_shortage(tables: CostTables) -> float:
    """How many times the memory that there is a placement needs; above 1 it does not fit."""
    # A device may be smaller than what planners leave free on it.
    memory = np.maximum(tables.memory_bytes, 1.0)
    return min(
        least_memory_scale(
            tables.state_bytes,
            tables.activation_bytes,
            memory,
            tables.device_count,
            tables.num_micro_batches,
            tables.is_gpipe,
            np.random.default_rng(attempt),
        )
        for attempt in range(_ATTEMPTS)
    )


def collected(chains: Iterable[NamedChain]) -> ChainCollection:
    """The chains that fit into their memory."""
    problems, left_out = [], {}
    for chain in chains:
        shortage = memory_shortage(chain.tables)
        if shortage > 1:
            left_out[chain.name] = f"needs {shortage:.2f} times the memory of the cluster"
        else:
            problems.append(chain)
    return ChainCollection(tuple(problems), MappingProxyType(left_out))
