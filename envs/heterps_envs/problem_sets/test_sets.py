"""The frozen test sets: what tables, curves and benchmarks quote. No training draws their problems.

A drawn set is its seed and its sizes; a test recomputes the fingerprints. `real` is every shipped
model on every shipped cluster, `published` reads a folder of published workloads.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from heterps_configs.errors import HeterpsError, UnknownNameError
from heterps_envs.cost_tables import CostTables
from heterps_envs.graphs.problem import GraphTables
from heterps_envs.problem_sets.chains import generate
from heterps_envs.problem_sets.graphs import generate_graphs
from heterps_envs.problem_sets.named import ChainCollection, GraphCollection, NamedChain
from heterps_envs.problem_sets.published_chains import published_chains
from heterps_envs.problem_sets.published_graphs import published_graphs
from heterps_envs.problem_sets.real_chains import real_chains
from heterps_envs.problem_sets.real_graphs import real_graphs

# Far from any seed that a training configuration reaches.
_FIRST_SEED = 2**62


class ChainDraw(NamedTuple):
    """How a set of chains is drawn, see `heterps_envs.problem_sets.chains.generate`."""

    seed: int
    num_problems: int
    layers: tuple[int, int]
    classes: tuple[int, int]
    count_range: tuple[int, int]
    fingerprint: str

    def problems(self, count: int = 0) -> list[CostTables]:
        """The set; `count` problems of it, or more of the same stream."""
        return generate(
            count or self.num_problems, self.seed, self.layers, self.classes, self.count_range
        )


DRAWN_CHAINS: Mapping[str, ChainDraw] = MappingProxyType(
    {
        "in-range": ChainDraw(_FIRST_SEED, 160, (8, 32), (2, 4), (1, 4), "f7a64a146b9dec91"),
        "longer": ChainDraw(_FIRST_SEED + 1, 60, (64, 96), (2, 4), (1, 4), "7eacdc3f48c22f76"),
        "more-types": ChainDraw(_FIRST_SEED + 2, 60, (8, 32), (5, 6), (1, 3), "902e838e53e69666"),
        "beyond-exact": ChainDraw(
            _FIRST_SEED + 3, 30, (48, 128), (8, 12), (2, 4), "0dc4ce57d1b2e888"
        ),
    }
)


class GraphDraw(NamedTuple):
    """How a set of graphs is drawn, see `heterps_envs.problem_sets.graphs.generate_graphs`."""

    seed: int
    num_problems: int
    nodes: tuple[int, int]
    devices: tuple[int, int]
    fingerprint: str

    def problems(self) -> list[GraphTables]:
        """The problems of the set."""
        return generate_graphs(self.num_problems, self.seed, self.nodes, self.devices)


DRAWN_GRAPHS: Mapping[str, GraphDraw] = MappingProxyType(
    {
        "in-range": GraphDraw(_FIRST_SEED + 16, 60, (24, 64), (3, 6), "ed59d8a59f329f76"),
        "larger": GraphDraw(_FIRST_SEED + 17, 24, (96, 256), (6, 8), "6a83108f05b75c89"),
    }
)
GRAPH_SETS = (*DRAWN_GRAPHS, "real", "published")
CHAIN_SETS = (*DRAWN_CHAINS, "real", "published")


def chain_collection(name: str, workloads: str | os.PathLike[str] | None = None) -> ChainCollection:
    """The problems of a set with their names, and what was left out of it.

    Args:
        name: One of `CHAIN_SETS`.
        workloads: The folder of published workloads; only `published` needs it.

    Raises:
        UnknownNameError: There is no such set.
        HeterpsError: `published` without a folder, or a folder that holds none of its files.
    """
    if name in DRAWN_CHAINS:
        drawn = enumerate(DRAWN_CHAINS[name].problems())
        return ChainCollection(tuple(NamedChain(f"{name} {i}", one) for i, one in drawn), {})
    if name == "real":
        return real_chains()
    if name != "published":
        raise UnknownNameError("set of chains", name, CHAIN_SETS)
    return published_chains(_folder(workloads))


def chain_set(name: str, workloads: str | os.PathLike[str] | None = None) -> list[CostTables]:
    """The problems of `chain_collection` alone."""
    return [entry.tables for entry in chain_collection(name, workloads).problems]


def graph_set(name: str, workloads: str | os.PathLike[str] | None = None) -> list[GraphTables]:
    """The problems of a set of graphs.

    Args:
        name: One of `GRAPH_SETS`.
        workloads: The folder of published workloads; only `published` needs it.

    Raises:
        UnknownNameError: There is no such set.
        HeterpsError: `published` without a folder, or a folder that holds none of its files.
    """
    if name in DRAWN_GRAPHS:
        return DRAWN_GRAPHS[name].problems()
    return [entry.tables for entry in graph_collection(name, workloads).problems]


def graph_collection(name: str, workloads: str | os.PathLike[str] | None = None) -> GraphCollection:
    """The graphs of `real` or `published` with their names, and what was left out.

    Raises:
        UnknownNameError: The set is neither of them.
        HeterpsError: See `graph_set`.
    """
    if name == "real":
        return real_graphs()
    if name != "published":
        raise UnknownNameError("set of graphs", name, GRAPH_SETS)
    return published_graphs(_folder(workloads))


def _folder(workloads: str | os.PathLike[str] | None) -> Path:
    if workloads is None:
        raise HeterpsError("the set 'published' needs the folder of published workloads")
    return Path(workloads)
