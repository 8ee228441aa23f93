"""PipeDream's graphs: seconds of the slowest stage, and CPU seconds.

Published: `optimizer_graph_hierarchical.py` (commit 7db6a1c) with 1e9 bytes/s at each level, as run
on a loaded machine of two cores; None where it had not finished after the CPU seconds given. Ours:
read the file and solve the same cost model, everything compiled before, one thread.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

from heterps_agents.systems.pipedream.planner import HierarchicalPipeline, split_hierarchical
from heterps_configs.errors import DocumentError, HeterpsError
from heterps_configs.importers.pipedream import load_pipedream

BANDWIDTH_BYTES_PER_S = 1e9


class Case(NamedTuple):
    """Options of the published program: units of each level, and no replicas."""

    units: tuple[int, ...]
    straight: bool


CASES = {
    "-n 4": Case((4,), False),
    "-n 4 4": Case((4, 4), False),
    "-n 8 straight": Case((8,), True),
}
# (seconds of the slowest stage or None, CPU seconds) for each case.
PUBLISHED: dict[str, tuple[tuple[float | None, float], ...]] = {
    "alexnet": ((0.0231658, 0.20), (0.0079391, 0.15), (0.0287210, 0.15)),
    "vgg16": ((0.1757326, 0.17), (0.0473865, 0.22), (0.1595310, 0.19)),
    "resnet18": ((0.0659180, 0.18), (0.0183023, 1.1), (0.0352070, 0.19)),
    "squeezenet1_0": ((0.0723288, 0.18), (0.0188205, 1.0), (0.0510940, 0.22)),
    "resnet101": ((0.1039410, 0.84), (None, 53.6), (0.0521250, 0.95)),
    "resnext101": ((0.1405250, 0.91), (None, 69.2), (0.0710100, 1.1)),
    "densenet121": ((0.0819850, 1.2), (None, 35.4), (0.0416150, 1.2)),
    "gnmt": ((0.0258680, 0.18), (0.0190320, 0.76), (0.0190320, 0.17)),
    "gnmt_large": ((0.1371290, 5.6), (None, 83.5), (0.0828450, 5.3)),
}
# The published seconds have seven decimals.
ROUNDING_S = 1e-7


def rows(workloads: Path, quick: bool, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One row for each graph and case."""
    folder = workloads / "pipedream"
    graphs = [path for path in sorted(folder.glob("*.txt")) if _is_graph(path)]
    if not graphs:
        raise HeterpsError(f"{folder}: no graphs")
    for case in CASES.values():
        _solve(graphs[0], case)  # compiles
    table = [
        _row(path, index, repeats=1 if quick else 5)
        for path in graphs
        for index in range(len(CASES))
    ]
    compared = [row for row in table if isinstance(row.get("published s"), float)]
    summary = {
        "cells": len(table),
        "proven": sum(row["proven"] == "yes" for row in table),
        "above the published stage time": sum(
            row["ours s"] > row["published s"] + ROUNDING_S for row in compared
        ),
        "finished where the published program was not": sum(
            row.get("published s") == "not finished" for row in table
        ),
        "most cpu s": max(row["cpu s"] for row in table),
        "median cpu s": statistics.median(row["cpu s"] for row in table),
    }
    return table, summary


def _is_graph(path: Path) -> bool:
    """Licence and source notes lie beside the graphs."""
    try:
        load_pipedream(path)
    except DocumentError:
        return False
    return True


def _solve(path: Path, case: Case) -> HierarchicalPipeline:
    graph = load_pipedream(path)
    bandwidths = [BANDWIDTH_BYTES_PER_S] * len(case.units)
    return split_hierarchical(graph, case.units, bandwidths, case.straight)


def _row(path: Path, index: int, repeats: int) -> dict[str, Any]:
    name, case = list(CASES.items())[index]
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        pipeline = _solve(path, case)
        seconds.append(time.process_time() - start)
    row: dict[str, Any] = {
        "graph": path.stem,
        "case": name,
        "ours s": pipeline.stage_time_s,
        "proven": "yes"
        if pipeline.proven
        else f"{pipeline.stage_time_s / pipeline.bound_s - 1:.1%}",
        "replicas": "-".join(str(stage.replicas) for stage in pipeline.stages),
        "cpu s": statistics.median(seconds),
    }
    if path.stem in PUBLISHED:
        time_s, cpu_s = PUBLISHED[path.stem][index]
        row |= {
            "published s": "not finished" if time_s is None else time_s,
            "published cpu s": cpu_s,
        }
    return row
