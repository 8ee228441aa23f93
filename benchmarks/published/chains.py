"""Chains: elastic counts, frontiers, exact placements and memory-aware bounds.

Drawn problems (`heterps_envs.problem_sets.chains`), no published file: the numbers that a cost
model of one chain is asked for. Seconds are medians of CPU time on one thread, everything compiled
before.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from benchmarks.shared.common import PLAIN_FAMILIES
from heterps_agents.exact.frontier import solve_frontier
from heterps_agents.exact.solve import solve
from heterps_agents.systems.heterps.elastic_chain import ElasticChain, steady_chain
from heterps_agents.systems.heterps.elastic_counts import cheapest, cheapest_at, elastic_frontier
from heterps_envs.closed_form.bounds import lower_bound, price_bound
from heterps_envs.closed_form.kernel_tables import KernelTables, kernel_tables
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem_sets.chains import generate

# (layers, classes, devices of each class), and the seconds that were asked for.
EXACT_SIZES = ((96, 4, 4, 0.15), (96, 4, 8, 0.5), (512, 4, 4, 2.0))
# Share of the cluster's memory that the model fills where memory is to bind.
TIGHT = 0.75


def rows(workloads: Path, quick: bool, seed: int) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """One row for each question."""
    count = 3 if quick else 15
    found = [*elastic_rows(count, seed), *exact_rows(count, seed), frontier_row(count, seed)]
    bounds = bound_row(4 * count, seed)
    summary = {f"{row['what']}, {row['size']}, s": row["median_s"] for row in found}
    summary |= {name: value for name, value in bounds.items() if name != "problems"}
    return found, summary


def elastic_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """The price DP on 512 layers and 8 classes: one target, 64 targets, and the exact optimum."""
    chains = [
        steady_chain(tables)
        for tables in generate(count, seed, (512, 512), (8, 8), (4, 8), PLAIN_FAMILIES)
    ]
    floors = [middle_period_s(chain) for chain in chains]
    pairs = list(zip(chains, floors, strict=True))
    cases: list[tuple[str, float | None, Callable[[tuple[ElasticChain, float]], object]]] = [
        ("elastic price DP, one target", 0.01, lambda pair: cheapest_at(*pair)),
        ("elastic frontier, 64 targets", 0.5, lambda pair: elastic_frontier(pair[0], 64)),
        ("elastic optimum under a floor", None, lambda pair: cheapest(*pair)),
    ]
    return [
        {"what": what, "size": "L 512, T 8", **timed(solver, pairs), "asked_s": asked or ""}
        for what, asked, solver in cases
    ]


def middle_period_s(chain: ElasticChain) -> float:
    """Half-way, in the logarithm, between the fastest plan of the frontier and the cheapest."""
    front = elastic_frontier(chain, 16)
    return math.sqrt(front[0].period_s * front[-1].period_s)


def exact_rows(count: int, seed: int) -> list[dict[str, Any]]:
    """Exact placements of long chains on owned devices, memory and links included."""
    return [
        {
            "what": "exact placement",
            "size": f"L {layers}, T {classes}, n {devices}",
            **timed(solve, kernels(count, seed, layers, classes, devices)),
            "asked_s": asked,
        }
        for layers, classes, devices, asked in EXACT_SIZES
    ]


def frontier_row(count: int, seed: int) -> dict[str, Any]:
    """All undominated placements on owned devices."""
    drawn = kernels(count, seed, 32, 4, 4)
    return {
        "what": "exact frontier",
        "size": "L 32, T 4, n 4",
        **timed(solve_frontier, drawn),
        "asked_s": "",
    }


def kernels(count: int, seed: int, layers: int, classes: int, devices: int) -> list[KernelTables]:
    """Drawn problems of one size."""
    drawn = generate(count, seed, (layers,) * 2, (classes,) * 2, (devices,) * 2, PLAIN_FAMILIES)
    return [kernel_tables(tables) for tables in drawn]


def timed(solver: Callable[[Any], object], problems: Iterable[Any]) -> dict[str, float]:
    """Median and longest CPU seconds; the first problem once before, untimed."""
    problems, seconds = list(problems), []
    solver(problems[0])
    for problem in problems:
        start = time.process_time()
        solver(problem)
        seconds.append(time.process_time() - start)
    return {
        "problems": len(seconds),
        "median_s": statistics.median(seconds),
        "longest_s": max(seconds),
    }


def bound_row(count: int, seed: int) -> dict[str, Any]:
    """Lower bounds as a share of the proven optimum, where memory binds: without and with it."""
    shares = []
    for tables in generate(count, seed, (8, 20), (2, 3), (1, 3), PLAIN_FAMILIES):
        tight = with_tight_memory(tables)
        result = solve(kernel_tables(tight))
        if result.code is not None:
            pair = price_bound(tight)[0], lower_bound(tight)
            shares.append([value / result.step_time_s for value in pair])
    without, knowing = zip(*shares, strict=True)
    return {
        "problems": len(shares),
        "bound over optimum, prices of time": statistics.mean(without),
        "bound over optimum, and of memory": statistics.mean(knowing),
        "worst bound over optimum, prices of time": min(without),
        "worst bound over optimum, and of memory": min(knowing),
    }


def with_tight_memory(tables: CostTables) -> CostTables:
    """Memory of which the model fills `TIGHT`, or in which its largest layer just fits."""
    need = tables.state_bytes + tables.activation_bytes
    largest = (tables.state_bytes + 3 * tables.activation_bytes).max() / tables.memory_bytes.max()
    fill = need.sum() / (tables.device_count @ tables.memory_bytes) / TIGHT
    return dataclasses.replace(tables, memory_bytes=tables.memory_bytes * max(fill, largest))
