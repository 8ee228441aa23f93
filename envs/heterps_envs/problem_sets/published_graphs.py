"""Published operator and layer graphs: dnn-partitioning (Tarnawski et al.) and PipeDream."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from types import MappingProxyType

from heterps_configs.errors import HeterpsError
from heterps_configs.importers.dnn_partitioning import load_dnn_partitioning
from heterps_configs.importers.pipedream import load_pipedream
from heterps_envs.graphs.sources import SourceGraph, graph_of_operators
from heterps_envs.problem_sets.named import GraphCollection, graph_packs

# PipeDream's profiles name no devices, and the importer adds both passes up: a backward pass is
# taken for twice a forward pass.
PIPEDREAM_ACCELERATORS, PIPEDREAM_BACKWARD_SHARE = 4, 2 / 3


def published_graphs(workloads: Path) -> GraphCollection:
    """All published graphs that a folder holds.

    Args:
        workloads: With a folder for each source: `dnn-partitioning`, `pipedream`.

    Raises:
        HeterpsError: It holds none of them, or a file is malformed.
    """
    readers = {"dnn-partitioning": _dnn_partitioning, "pipedream": _pipedream}
    there = [name for name in readers if (workloads / name).is_dir()]
    if not there:
        raise HeterpsError(f"{workloads}: holds none of the folders {', '.join(readers)}")
    problems, left_out = [], {}
    for name in there:
        for graph in readers[name](workloads / name):
            if graph_packs(graph.tables):
                problems.append(graph)
            else:
                left_out[graph.name] = "no packing fits"
    return GraphCollection(tuple(problems), MappingProxyType(left_out))


def _dnn_partitioning(folder: Path) -> Iterable[SourceGraph]:
    for path in sorted(folder.glob("*-inputs/*/*.json")):
        graph = graph_of_operators(load_dnn_partitioning(path))
        inputs, kind = path.parts[-3].removesuffix("-inputs"), path.parts[-2]
        yield dataclasses.replace(graph, name=f"{inputs} {kind} {path.stem}")


def _pipedream(folder: Path) -> Iterable[SourceGraph]:
    for path in sorted(folder.glob("*.txt")):
        if path.stem.islower():  # the others are LICENSE and SOURCE
            graph = load_pipedream(path, PIPEDREAM_ACCELERATORS)
            found = graph_of_operators(graph, PIPEDREAM_BACKWARD_SHARE)
            yield dataclasses.replace(found, name=f"PipeDream {path.stem}")
