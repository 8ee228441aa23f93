"""dnn-partitioning, contiguous splits: largest load (ms) and CPU seconds.

Published: the optimum by the authors' C++ dynamic programme (`throughput-dp/dp.cpp`, commit
b207b6a) and the CPU seconds of its linearised version (`-linearize`), as run on a loaded machine of
two cores. Ours: read the file and solve, everything compiled before, one thread. The optimum is
proven once more by `check_split_certificate`, which knows no solver: `bound re-checked`, in `check
cpu s`.
"""

from __future__ import annotations

import statistics
import time
from pathlib import Path
from typing import Any, NamedTuple

from heterps_agents.splits.contiguous import split_contiguous
from heterps_configs.errors import HeterpsError
from heterps_configs.importers.dnn_partitioning import load_dnn_partitioning
from heterps_envs.certificates.split import check_split_certificate
from heterps_envs.graphs.operators import assignment_problems, max_load


class Published(NamedTuple):
    """The optimum in ms, CPU seconds of the exact and of the linearised programme."""

    optimum_ms: float
    exact_s: float
    linear_s: float


PUBLISHED = {
    "LayerGraphs/bert24_inference": Published(17.78991, 0.00, 0.00),
    "LayerGraphs/bert24_training": Published(41.74581, 0.00, 0.00),
    "LayerGraphs/gnmt_inference": Published(32.91066, 11.2, 0.01),
    "LayerGraphs/gnmt_training": Published(107.00441, 19.1, 0.02),
    "OperatorGraphs/bert_l-3_inference": Published(27.91857, 0.55, 0.03),
    "OperatorGraphs/bert_l-3_training": Published(65.30315, 3.3, 0.06),
    "OperatorGraphs/bert_l-6_inference": Published(29.57951, 2.1, 0.13),
    "OperatorGraphs/bert_l-6_training": Published(72.86497, 11.9, 0.30),
    "OperatorGraphs/bert_l-12_inference": Published(147.47798, 8.6, 0.74),
    "OperatorGraphs/bert_L-12_training": Published(437.99764, 19.0, 2.01),
}
# The published optima have five decimals.
ROUNDING_MS = 1e-5


def rows(workloads: Path, quick: bool, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One row for each file of `throughput-inputs`."""
    folder = workloads / "dnn-partitioning" / "throughput-inputs"
    files = sorted(folder.glob("*/*.json"), key=lambda path: (path.parent.name, path.stem.lower()))
    if not files:
        raise HeterpsError(f"{folder}: no files")
    split_contiguous(load_dnn_partitioning(files[0]))  # compiles
    table = [_row(path, repeats=1 if quick else 5) for path in files]
    compared = [row for row in table if "published ms" in row]
    linear_s = [row["linearised dp s"] for row in compared]
    summary = {
        "files": len(table),
        "proven": sum(row["proven"] == "yes" for row in table),
        "above the published optimum": sum(
            row["ours ms"] > row["published ms"] + ROUNDING_MS for row in compared
        ),
        "bounds re-checked": sum(row["bound re-checked"] == "yes" for row in table),
        "most cpu s of a check": max(row["check cpu s"] for row in table),
        "most cpu s": max(row["cpu s"] for row in table),
        "median cpu s": statistics.median(row["cpu s"] for row in table),
        "median cpu s of the linearised dp": statistics.median(linear_s) if linear_s else "",
    }
    return table, summary


def _row(path: Path, repeats: int) -> dict[str, Any]:
    """The split of one file, checked with the objective that knows no solver."""
    name = f"{path.parent.name}/{path.stem}"
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        graph = load_dnn_partitioning(path)
        split = split_contiguous(graph)
        seconds.append(time.process_time() - start)
    broken = assignment_problems(graph, split.assignment)
    if broken:
        raise AssertionError(f"{name}: {broken[0]}")
    start = time.process_time()
    report = check_split_certificate(graph, split.assignment, split.certificate)
    check_s = time.process_time() - start
    if not report.is_valid:
        raise AssertionError(f"{name}: {report.problems[0]}")
    row: dict[str, Any] = {
        "workload": name,
        "nodes": len(graph.nodes),
        "ideals": split.num_ideals if split.num_ideals is not None else "too many",
        "ours ms": 1e3 * max_load(graph, split.assignment),
        "proven": "yes" if split.proven else f"{split.max_load_s / split.bound_s - 1:.1%}",
        "bound re-checked": "yes" if report.is_bound_checked else report.unchecked[0],
        "check cpu s": check_s,
        "one order ms": 1e3 * split.linear_max_load_s,
        "cpu s": statistics.median(seconds),
    }
    if name in PUBLISHED:
        known = PUBLISHED[name]
        row |= {
            "published ms": known.optimum_ms,
            "exact dp s": known.exact_s,
            "linearised dp s": known.linear_s,
        }
    return row
