"""How long the exact solver takes, by layers, device classes and devices of each class.

    python benchmarks/planners/exact.py
    python benchmarks/planners/exact.py --families all
    python benchmarks/planners/exact.py --quick --json exact.json

Problems are drawn by `heterps_envs.problem_sets.chains`, memory-tight ones included: models whose
layers follow each other (`plain`), for which the times were asked, or all families. All solvers are
warm. A solve is one thread, from the cost tables to the proven placement, greedy's first one
included, and is timed for the objective `throughput`. Sizes take turns, so that a slow moment of
the machine falls on all of them. Problems that need too many labels are given up and not proven;
the summary has the share that is.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.shared.common import PLAIN_FAMILIES
from heterps_agents.exact.solve import predicted_seconds, solve, table_bytes
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.problem_sets.chains import generate
from heterps_envs.problem_sets.model_families import FAMILIES

# (layers, device classes, devices of each class)
SIZES = [
    (32, 4, 4),
    (32, 4, 8),
    (32, 8, 2),
    (96, 4, 4),
    (96, 4, 8),
    (512, 2, 4),
    (512, 2, 16),
    (512, 4, 4),
]
# Milliseconds that were asked for.
ASKED_MS = {"L 96, T 4, n 4": 150.0, "L 96, T 4, n 8": 500.0, "L 512, T 4, n 4": 2000.0}


def main() -> None:
    """Runs the benchmark and prints its table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="write rows and summary to this file")
    parser.add_argument("--quick", action="store_true", help="5 problems of each size, not 25")
    parser.add_argument("--seed", type=int, default=0, help="seed of the drawn problems")
    parser.add_argument("--families", choices=("plain", "all"), default="plain")
    arguments = parser.parse_args()
    families = FAMILIES if arguments.families == "all" else PLAIN_FAMILIES
    rows = measure(5 if arguments.quick else 25, arguments.seed, families)
    show(rows)
    if arguments.json:
        report = {"rows": rows, "summary": summarise_all(rows)}
        arguments.json.write_text(json.dumps(report, indent=1))


def measure(problems: int, seed: int, families: Sequence[str]) -> list[dict[str, Any]]:
    """One row for each size."""
    solve(kernel_tables(generate(1, seed)[0]))  # compiles
    kernels = [
        [
            kernel_tables(tables)
            for tables in generate(
                problems, seed, (layers,) * 2, (classes,) * 2, (count,) * 2, families
            )
        ]
        for layers, classes, count in SIZES
    ]
    samples: list[list[dict[str, float]]] = [[] for _ in SIZES]
    for index in range(problems):
        for size, drawn in enumerate(kernels):
            samples[size].append(timed_solve(drawn[index]))
    return [summarise(size, values) for size, values in zip(SIZES, samples, strict=True)]


def timed_solve(kernel: KernelTables) -> dict[str, float]:
    """One solve: milliseconds, transitions and what was predicted."""
    start = time.perf_counter()
    result = solve(kernel)
    seconds = time.perf_counter() - start
    return {
        "ms": 1e3 * seconds,
        "transitions": result.transitions,
        "predicted_ms": 1e3 * predicted_seconds(kernel),
        "mb": table_bytes(kernel) / 1e6,
        "has_plan": float(result.code is not None),
        "is_proven": float(result.status != "over budget"),
    }


def summarise(size: tuple[int, int, int], values: list[dict[str, float]]) -> dict[str, Any]:
    """Medians and the slowest of one size."""
    layers, classes, count = size
    return {
        "size": f"L {layers}, T {classes}, n {count}",
        "problems": len(values),
        "with_a_plan": int(sum(value["has_plan"] for value in values)),
        "proven": int(sum(value["is_proven"] for value in values)),
        "median_ms": statistics.median(value["ms"] for value in values),
        "max_ms": max(value["ms"] for value in values),
        "median_predicted_ms": statistics.median(value["predicted_ms"] for value in values),
        "median_transitions": statistics.median(value["transitions"] for value in values),
        "table_mb": max(value["mb"] for value in values),
    }


def summarise_all(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Times and proven shares of all sizes, the three that were asked for, and the machine."""
    summary: dict[str, Any] = {}
    for row in rows:
        key = f"exact_{key_of(row['size'])}"
        share = row["proven"] / row["problems"]
        summary |= {f"{key}_median_ms": row["median_ms"], f"{key}_max_ms": row["max_ms"]}
        summary[f"{key}_proven_share"] = share
        if row["size"] in ASKED_MS:
            summary[f"{key}_met"] = row["median_ms"] < ASKED_MS[row["size"]] and share == 1.0
    return {**summary, **machine()}


def key_of(size: str) -> str:
    """`L 32, T 4, n 4` as part of a key: `l32_t4_n4`."""
    return size.replace(", ", "_").replace(" ", "").lower()


def machine() -> dict[str, str]:
    """What the numbers were measured on."""
    return {"machine": f"{platform.processor() or platform.machine()}, {platform.system()}",
            "python": platform.python_version()}  # fmt: skip


def show(rows: list[dict[str, Any]]) -> None:
    """Prints the rows."""
    table = Table(title=f"Exact solver, one thread ({machine()['machine']})")
    columns = (
        "size",
        "drawn",
        "proven",
        "median ms",
        "max ms",
        "guess ms",
        "10^6 steps",
        "table MB",
    )
    for column in columns:
        table.add_column(
            column, justify="left" if column == "size" else "right", no_wrap=column == "size"
        )
    for row in rows:
        table.add_row(
            row["size"],
            str(row["problems"]),
            str(row["proven"]),
            f"{row['median_ms']:.1f}",
            f"{row['max_ms']:.1f}",
            f"{row['median_predicted_ms']:.0f}",
            f"{row['median_transitions'] / 1e6:.1f}",
            f"{row['table_mb']:.1f}",
        )
    Console().print(table)


if __name__ == "__main__":
    main()
