"""Piper's BERT-32 on A100s: tensor parallelism, replicas and recomputation of activations.

    python benchmarks/published/published.py --workloads FOLDER --only piper

Batch of 1920, 25 * 2**30 bytes per second, as Piper's `main()` sets them. The peer is Piper's own
planner, run for this comparison: all its cells, with its variants, took 18.1 CPU seconds.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from heterps_agents.systems.piper.planner import plan_graph, seconds_per_sample
from heterps_configs.importers.piper import load_graph

GIBIBYTE = 2.0**30
BATCH_SIZE, BANDWIDTH = 1920, 25 * GIBIBYTE
# Seconds per sample by memory of a device (GiB) and number of devices.
PEER: Mapping[int, Mapping[int, float]] = {
    1: {128: 0.0388717, 512: 0.0087800},
    2: {32: 0.0665495, 64: 0.0320301, 128: 0.0151464, 512: 0.0036675},
    8: {8: 0.165856, 32: 0.0415155, 64: 0.0202006, 128: 0.0101209, 512: 0.0025611},
    80: {8: 0.122007, 32: 0.030844, 64: 0.0156502, 128: 0.0080532, 512: 0.0022725},
}
QUICK_DEVICES = 64


def rows(workloads: Path, quick: bool, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One row for each memory and number of devices; nothing is drawn."""
    del seed
    graph = load_graph(workloads / "piper" / "bert32a100.json")
    base = dataclasses.replace(
        graph, bandwidth_bytes_per_s=BANDWIDTH, batch_size=BATCH_SIZE, memory_bytes=80 * GIBIBYTE
    )
    plan_graph(dataclasses.replace(base, num_devices=2))
    table: list[dict[str, Any]] = []
    for memory, cells in PEER.items():
        for devices, peer_s in cells.items():
            if quick and devices > QUICK_DEVICES:
                continue
            case = dataclasses.replace(base, num_devices=devices, memory_bytes=memory * GIBIBYTE)
            start = time.process_time()
            answer = plan_graph(case)
            seconds = time.process_time() - start
            assert seconds_per_sample(case, answer.stages) == answer.seconds_per_sample
            table.append(
                {
                    "case": f"BERT-32, {devices} A100 of {memory} GiB",
                    "s_per_sample": answer.seconds_per_sample,
                    "peer_s_per_sample": peer_s,
                    "peer": "Piper",
                    "difference": answer.seconds_per_sample / peer_s - 1,
                    "stages": len(answer.stages),
                    "cpu_s": seconds,
                    "met": answer.seconds_per_sample <= 1.01 * peer_s,
                }
            )
    met = [bool(row["met"]) for row in table]
    return table, {
        "piper_met": f"{sum(met)} of {len(met)}",
        "piper_cpu_s": sum(float(row["cpu_s"]) for row in table),
    }
