"""PipeEdge's scheduler example: four MinnowBoards and four RCC-VEs, batches of 8.

    python benchmarks/published/published.py --workloads FOLDER --only pipeedge

PipeEdge's own schedule is the one that its README prints; the optimum of its cost model was
computed for this comparison.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from heterps_agents.systems.pipeedge.chain_bottleneck import bottleneck_s, split_chain
from heterps_agents.systems.pipeedge.problem import chain_of
from heterps_configs.importers.pipeedge import load_problem

# Seconds: the authors' schedule, and the optimum to four decimals.
PEERS = {
    "google/vit-base-patch16-224": (1.7262, 1.5488),
    "google/vit-large-patch16-224": (5.7033, 5.0428),
}


def rows(workloads: Path, quick: bool, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One row for each model; nothing is drawn, and all of it is quick."""
    del quick, seed
    folder = workloads / "pipeedge"
    table: list[dict[str, Any]] = []
    for model, (peer_s, optimum_s) in PEERS.items():
        problem = load_problem(
            folder / "models.yml", folder / "device_types.yml", folder / "devices.yml", model
        )
        chain = chain_of(problem)
        split_chain(chain)
        start = time.process_time()
        split = split_chain(chain)
        seconds = time.process_time() - start
        assert abs(bottleneck_s(chain, split.stages) - split.bottleneck_s) < 1e-9
        names = [entry.name.partition("-")[0] for entry in problem.device_types]
        table.append(
            {
                "case": model,
                "bottleneck_s": split.bottleneck_s,
                "optimum_s": optimum_s,
                "peer_s": peer_s,
                "cpu_s": seconds,
                "plan": " ".join(
                    f"{names[stage.device_class]}:{stage.end_layer - stage.first_layer}"
                    for stage in split.stages
                ),
                "met": split.bottleneck_s <= optimum_s + 5e-5 and seconds < 0.1,
            }
        )
    return table, {"pipeedge_met": f"{sum(row['met'] for row in table)} of {len(table)}"}
