"""Operator and layer graphs of dnn-partitioning, split without contiguity.

    python benchmarks/published/published.py --workloads FOLDER --only dnn_noncontiguous

The bound is proven once more by `check_split_certificate`, which knows no solver: `bound_rechecked`
is whether it confirms all that is claimed, `check_cpu_s` its CPU seconds.

The peer is HiGHS on the authors' integer programme, as run for this comparison (milliseconds), and,
where it was not run, the exact contiguous optimum, which a split may always use.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any, NamedTuple

from heterps_agents.splits.solve import split_graph
from heterps_configs.importers.dnn_partitioning import load_dnn_partitioning
from heterps_envs.certificates.split import check_split_certificate
from heterps_envs.graphs.operators import assignment_problems, max_load

MAX_SECONDS, QUICK_SECONDS = 50.0, 10.0
TARGET_GAP, ASKED_GAP, ASKED_SECONDS = 0.005, 0.01, 60.0


class Peer(NamedTuple):
    """The contiguous optimum, what HiGHS found without contiguity, and its CPU seconds."""

    contiguous_ms: float
    highs_ms: float | None = None
    highs_cpu_s: float | None = None


PEERS = {
    "LayerGraphs/bert24_inference": Peer(17.78991, 17.71472, 5.1),
    "LayerGraphs/bert24_training": Peer(41.74581, 39.78954, 8.6),
    "LayerGraphs/gnmt_inference": Peer(32.91066, 31.71762, 92.0),
    "LayerGraphs/gnmt_training": Peer(107.00441, 88.56424, 224.0),
    "OperatorGraphs/bert_l-3_inference": Peer(27.91857, 21.90838, 1.4),
    "OperatorGraphs/bert_l-3_training": Peer(65.30315, 54.20740, 2.5),
    "OperatorGraphs/bert_l-6_inference": Peer(29.57951, 28.44008, 31.0),
    "OperatorGraphs/bert_l-6_training": Peer(72.86497),
    "OperatorGraphs/bert_l-12_inference": Peer(147.47798),
    "OperatorGraphs/bert_L-12_training": Peer(437.99764),
}
# The peers' values have five decimals.
ROUNDING_MS = 1e-5


def rows(workloads: Path, quick: bool, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One row for each file under `throughput-inputs`, also for those without a peer."""
    folder = workloads / "dnn-partitioning" / "throughput-inputs"
    table: list[dict[str, Any]] = []
    for path in sorted(folder.rglob("*.json")):
        case = str(path.relative_to(folder).with_suffix(""))
        graph = load_dnn_partitioning(path)
        start = time.process_time()
        split = split_graph(
            graph,
            max_seconds=QUICK_SECONDS if quick else MAX_SECONDS,
            target_gap=TARGET_GAP,
            seed=seed,
        )
        cpu_s = time.process_time() - start
        assert assignment_problems(graph, split.assignment) == []
        assert max_load(graph, split.assignment) == split.max_load_s
        start = time.process_time()
        report = check_split_certificate(graph, split.assignment, split.certificate)
        check_cpu_s = time.process_time() - start
        assert report.is_valid, report.problems
        peer = PEERS.get(case)
        limit_ms = None if peer is None else peer.highs_ms or peer.contiguous_ms
        load_ms = split.max_load_s * 1e3
        is_good = limit_ms is None or load_ms <= limit_ms + ROUNDING_MS
        table.append(
            {
                "case": case,
                "max_load_ms": load_ms,
                "bound_ms": split.lower_bound_s * 1e3,
                "gap_percent": 100 * split.gap,
                "evidence": split.evidence,
                "bound_rechecked": report.is_bound_checked,
                "rechecked_gap_percent": 100 * report.gap,
                "check_cpu_s": check_cpu_s,
                "cpu_s": cpu_s,
                "highs_ms": peer and peer.highs_ms,
                "highs_cpu_s": peer and peer.highs_cpu_s,
                "contiguous_ms": peer and peer.contiguous_ms,
                "met": is_good and split.gap < ASKED_GAP and cpu_s < ASKED_SECONDS,
            }
        )
    summary = {
        "dnn_noncontiguous_met": f"{sum(row['met'] for row in table)} of {len(table)}",
        "dnn_noncontiguous_largest_gap_percent": max(row["gap_percent"] for row in table),
        "dnn_noncontiguous_largest_cpu_s": max(row["cpu_s"] for row in table),
        "dnn_noncontiguous_bounds_rechecked": (
            f"{sum(row['bound_rechecked'] for row in table)} of {len(table)}"
        ),
        "dnn_noncontiguous_largest_rechecked_gap_percent": max(
            row["rechecked_gap_percent"] for row in table
        ),
        "dnn_noncontiguous_largest_check_cpu_s": max(row["check_cpu_s"] for row in table),
    }
    return table, summary
