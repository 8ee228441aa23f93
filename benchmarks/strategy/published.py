"""Published cells with tensor parallelism or recompute: our plans under the authors' own costs.

    python benchmarks/strategy/published.py --workloads FOLDER
    python benchmarks/strategy/published.py --workloads FOLDER --only sailor --quick

Piper's BERT-32 on A100s (tensor-parallel degrees 1 to 8, activations kept or computed again) and
Sailor's OPT-350 on two types of GPUs (degrees 1, 2 and 4), each beside the best column that there
is, and beside what is left without tensor parallelism; and a twin of AMP's GPT-2 (`amp_twin.py`)
beside AMP's own method. FOLDER holds the files as published, as for `benchmarks/published`; AMP's
twin needs none, and its own case is read where its profiles are there (`amp_profiles.py`).
Galvatron's files hold measurements, and no plan or figure to compare with.
"""

from __future__ import annotations

import dataclasses
import math
import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from benchmarks.published import piper as piper_cells
from benchmarks.published import sailor as sailor_cells
from benchmarks.shared.common import parse_options, report
from benchmarks.strategy import amp_profiles, amp_twin
from heterps_agents.systems.piper.planner import plan_graph
from heterps_agents.systems.sailor.planner import SailorLimits, plan_for
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.importers import sailor
from heterps_configs.importers.piper import PiperGraph, load_graph

Row = dict[str, Any]
# Piper's seconds have six digits, and at most seven after the point: a figure is compared as it was
# rounded.
PIPER_DIGITS, PIPER_DECIMALS = 6, 7


def main() -> None:
    """Prints the table."""
    options = parse_options(
        __doc__ or "",
        workloads="folder of the published files (default: $HETERPS_WORKLOADS)",
        only="piper, sailor or amp",
    )
    folder = Path(options.workloads or os.environ.get("HETERPS_WORKLOADS") or "")
    sections: Mapping[str, Callable[[Path, bool], list[Row]]] = {
        "piper": _piper,
        "sailor": _sailor,
        "amp": _amp,
    }
    wanted = options.only.split(",") if options.only else list(sections)
    if not set(wanted) <= set(sections):
        sys.exit(f"error: --only {options.only}: piper, sailor or amp")
    try:
        rows = [row for name in wanted for row in sections[name](folder, options.quick)]
    except HeterpsError as error:
        sys.exit(f"error: {error}")
    met = sum(row["met"] for row in rows)
    report("published cells with strategies", rows, {"met": f"{met} of {len(rows)}"}, options)


def _piper(workloads: Path, quick: bool) -> list[Row]:
    graph = dataclasses.replace(
        load_graph(workloads / "piper" / "bert32a100.json"),
        bandwidth_bytes_per_s=piper_cells.BANDWIDTH,
        batch_size=piper_cells.BATCH_SIZE,
    )
    rows = []
    for memory, cells in piper_cells.PEER.items():
        for devices, peer_s in cells.items():
            if quick and devices > piper_cells.QUICK_DEVICES:
                continue
            memory_bytes = memory * piper_cells.GIBIBYTE
            case = dataclasses.replace(graph, num_devices=devices, memory_bytes=memory_bytes)
            start = time.process_time()
            ours_s = plan_graph(case).seconds_per_sample
            cpu_s = time.process_time() - start
            rows.append(
                {
                    "case": f"BERT-32, {devices} A100 of {memory} GiB",
                    "unit": "samples/s",
                    "ours": 1 / ours_s,
                    "best_column": 1 / peer_s,
                    "column": "Piper",
                    "tp 1 only": _piper_alone(case),
                    "cpu_s": cpu_s,
                    "met": round(ours_s, _piper_decimals(peer_s)) <= peer_s,
                }
            )
    return rows


def _piper_decimals(seconds: float) -> int:
    return min(PIPER_DECIMALS, PIPER_DIGITS - 1 - math.floor(math.log10(seconds)))


def _piper_alone(graph: PiperGraph) -> float:
    """Samples per second without tensor parallelism; 0 where nothing fits."""
    nodes = tuple(
        dataclasses.replace(node, configurations={1: node.configurations[1]})
        for node in graph.nodes
    )
    try:
        return 1 / plan_graph(dataclasses.replace(graph, nodes=nodes)).seconds_per_sample
    except InfeasibleError:
        return 0.0


def _sailor(workloads: Path, quick: bool) -> list[Row]:
    folder = workloads / "sailor"
    simulations = folder / "Planner" / "simulations"
    model = sailor.load_model(
        simulations / "profiles_tmp.json", folder / "Planner" / "llm_info.json", "OPT-350"
    )
    cluster = sailor.load_cluster(simulations / "configs" / "basic_cluster_config.json")
    links = sailor.load_links(folder / "providers" / "multizone_bandwidths_het.json")
    rows = []
    for (fast, slow), (peer, name) in list(sailor_cells.BEST_PEERS.items())[: 1 if quick else None]:
        gpus, ours = {"A100-40": fast, "V100-16": slow}, list[float]()
        start = time.process_time()
        for degrees in ((1, 2, 4), (1,)):
            limits = SailorLimits(tensor_parallel=degrees)
            answer = plan_for(model, cluster, links, gpus, 1024, limits)
            ours.append(1 / answer.cost.iteration_s)
        rows.append(
            {
                "case": f"OPT-350, batch 1024, {fast} A100-40 + {slow} V100-16",
                "unit": "iterations/s",
                "ours": ours[0],
                "best_column": peer,
                "column": name,
                "tp 1 only": ours[1],
                "cpu_s": time.process_time() - start,
                # The column is rounded.
                "met": round(ours[0], len(str(peer).partition(".")[2])) >= peer,
            }
        )
    return rows


def _amp(workloads: Path, quick: bool) -> list[Row]:
    """Of the degrees that were looked at in AMP's repository, and of all together the best."""
    rows, degrees = (
        amp_profiles.rows(workloads),
        [amp_twin.Degrees(*cell) for cell in amp_twin.CELLS],
    )
    names = {f"batch {d[0]} tp {d[1]} dp {d[2]} pp {d[3]}": [d] for d in degrees}
    if not quick:
        names["the best of all degrees"] = list(amp_twin.all_degrees())
    for name, chosen in names.items():
        cases = [amp_twin.case_of(each) for each in chosen]
        start = time.process_time()
        ours_s = min(case.cost_s(amp_twin.our_split(case)) for case in cases)
        cpu_s = time.process_time() - start
        peer_s = min(case.cost_s(amp_twin.amp_split(case)) for case in cases)
        rows.append(
            {
                "case": f"twin of AMP's GPT-2, {name}",
                "unit": "iterations/s",
                "ours": 1 / ours_s,
                "best_column": 1 / peer_s,
                "column": "AMP's method",
                "optimum": 1 / min(map(amp_twin.least_s, cases)),
                "cpu_s": cpu_s,
                # Sums of the same seconds in another order.
                "met": ours_s <= peer_s * (1 + 1e-12),
            }
        )
    return rows


if __name__ == "__main__":
    main()
