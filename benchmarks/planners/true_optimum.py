"""How far plans of `auto`, and the bound of all plans that can be run, are from the true optimum.

    python benchmarks/planners/true_optimum.py
    python benchmarks/planners/true_optimum.py --quick --json true_optimum.json

Enumerated: small models on drawn clusters of two to four devices. Every placement that planners may
form is simulated, so that the best of them is known. Shipped: every shipped model on every shipped
cluster, where only the bound is known; the gap of the closed form stands beside it.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Iterator
from itertools import combinations, pairwise, product
from typing import Any

import numpy as np

from benchmarks.shared.common import parse_options, report
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.job import Job
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.library import load_profile, shipped
from heterps_envs.closed_form.placement import PlacedStage, Placement
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bound_plan
from heterps_envs.simulator.simulate import feasible_step_time_s

COUNT, QUICK_COUNT = 12, 3
MODELS = ("perceptron", "ctr-tiny", "llama-tiny")
TYPES = ("H100-80G", "A100-40G", "V100-16G", "T4", "L4", "RTX-3090")
COUNTS = ((1, 1), (2, 1), (1, 2), (2, 2), (3,), (1, 1, 1))
MICRO_BATCHES = (4, 8, 16)
BETWEEN_BYTES_PER_S = (1.25e8, 1.25e9, 1.25e10)


def main() -> None:
    """Runs the benchmark and prints its tables."""
    options = parse_options(__doc__ or "", count="enumerated problems (12)")
    count = int(options.count or (QUICK_COUNT if options.quick else COUNT))
    small = [_enumerated(_drawn(options.seed, index)) for index in range(count)]
    pairs = [] if options.quick else [row for problem in _pairs() if (row := _bounded(problem))]
    above = [row["auto_above_optimum"] for row in small]
    below = [row["bound_below_optimum"] for row in small]
    summary: dict[str, Any] = {
        "enumerated_problems": len(small),
        "auto_above_optimum_percent_mean": 100 * statistics.mean(above),
        "auto_above_optimum_percent_worst": 100 * max(above),
        "auto_is_the_optimum_percent": 100 * statistics.mean(value < 1e-6 for value in above),
        "bound_below_optimum_percent_median": 100 * statistics.median(below),
        "bound_above_optimum": sum(value < -1e-9 for value in below),
    }
    if pairs:
        summary["shipped_pairs"] = len(pairs)
        for name in ("gap", "closed_form_gap"):
            values = sorted(row[name] for row in pairs if row[name] is not None)
            summary[f"{name}_percent_median"] = 100 * statistics.median(values)
        for name in ("status", "closed_form_status"):
            proven = sum(row[name] == "proven" for row in pairs)
            summary[f"{name}_proven_percent"] = 100 * proven / len(pairs)
    table_alone = argparse.Namespace(**{**vars(options), "json": None})
    report("Every placement simulated", small, {}, table_alone)
    report("Shipped models on shipped clusters", pairs, summary, options)


def _drawn(seed: int, index: int) -> Problem:
    """A model whose layers are few, on few devices; a node for each type."""
    rng = np.random.default_rng([seed, index])
    profile = load_profile(MODELS[index % len(MODELS)])
    counts = COUNTS[int(rng.integers(len(COUNTS)))]
    kinds = rng.choice(TYPES, len(counts), replace=False)
    nodes = tuple(
        Node(
            name=f"n{number}",
            devices=(DeviceGroup(name=f"d{number}", type=str(kind), count=size),),
            link=Link(latency_s=5e-6, bandwidth_bytes_per_s=1.2e10),
        )
        for number, (kind, size) in enumerate(zip(kinds, counts, strict=True))
    )
    speed = float(rng.choice(BETWEEN_BYTES_PER_S))
    between = Link(latency_s=3e-5, bandwidth_bytes_per_s=speed)
    cluster = Cluster(name="drawn", nodes=nodes, inter_node_link=between)
    batch = int(rng.choice(MICRO_BATCHES))
    schedule = str(rng.choice(("1f1b", "1f1b", "gpipe")))
    job = {"dtype": profile.dtype, "global_batch_size": batch, "schedule": schedule}
    return Problem(profile, cluster, Job.from_mapping(job))


def _enumerated(problem: Problem) -> dict[str, Any]:
    best_s = min(map(lambda placement: _simulated_s(problem, placement), _placements(problem)))
    found = place(problem, "auto")
    step_time_s, least_s = found.estimate.step_time_s, found.executable.step_time_s or 0.0
    # `auto` may hold more micro-batches in flight than these placements do.
    best_s = min(best_s, step_time_s)
    devices = ", ".join(f"{len(entry.devices)} {entry.type.name}" for entry in problem.classes)
    return {
        "problem": f"{problem.profile.name} {problem.job.schedule} on {devices}",
        "micro_batches": problem.job.num_micro_batches,
        "optimum_ms": 1000 * best_s,
        "auto_above_optimum": step_time_s / best_s - 1,
        "bound_below_optimum": 1 - least_s / best_s,
    }


def _simulated_s(problem: Problem, placement: Placement) -> float:
    try:
        return feasible_step_time_s(problem, bound_plan(problem, placement, planner="all", seed=0))
    except InfeasibleError:
        return float("inf")


def _placements(problem: Problem) -> Iterator[Placement]:
    """Every one that the devices allow: cuts, and a class and replicas for each stage."""
    num_layers, counts = problem.profile.num_layers, [len(e.devices) for e in problem.classes]
    most = min(sum(counts), num_layers)
    ways = [(kind, k) for kind, count in enumerate(counts) for k in range(1, count + 1)]
    for num_stages in range(1, most + 1):
        choices = [
            choice
            for choice in product(ways, repeat=num_stages)
            if all(
                sum(k for kind, k in choice if kind == each) <= count
                for each, count in enumerate(counts)
            )
        ]
        for cuts in combinations(range(1, num_layers), num_stages - 1):
            edges = list(pairwise((0, *cuts, num_layers)))
            for choice in choices:
                yield tuple(
                    PlacedStage(first, stop - 1, kind, replicas)
                    for (first, stop), (kind, replicas) in zip(edges, choice, strict=True)
                )


def _pairs() -> Iterator[Problem]:
    for model in shipped("models"):
        for cluster in shipped("clusters"):
            yield load_problem(model, cluster)


def _bounded(problem: Problem) -> dict[str, Any] | None:
    """None where nothing fits."""
    try:
        found = place(problem, "auto")
    except HeterpsError:
        return None
    return {
        "problem": f"{problem.profile.name} on {problem.cluster.name}",
        "step_time_ms": 1000 * found.estimate.step_time_s,
        "gap": found.executable.gap,
        "status": found.executable.status,
        "closed_form_gap": found.bound.gap,
        "closed_form_status": found.bound.status,
    }


if __name__ == "__main__":
    main()
