"""What `auto` answers against every other planner at 10,000 evaluations, all as simulated.

    python benchmarks/planners/auto.py
    python benchmarks/planners/auto.py --quick --json auto.json
    python benchmarks/planners/auto.py --count 160 --seed 1000     # the frozen problems

Each problem is a shipped model on a drawn cluster of shipped device types (one to three types, one
to four nodes of each, links of usual speeds), under 1F1B or GPipe, with a batch of 32 or 128.
Settings of `auto` are chosen on seeds below 1000; the frozen ones begin there.
"""

from __future__ import annotations

import statistics
import time
from typing import Any, NamedTuple

import numpy as np

from benchmarks.shared.common import parse_options, report
from heterps.planning.place import place
from heterps_agents.interface.planner import Budget
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.job import Job
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_profile
from heterps_envs.problem import Problem

COUNT, QUICK_COUNT = 160, 12
EVALUATIONS = 10_000
OTHERS = (
    "exact", "ppo", "unlearned-beam", "annealing", "genetic", "cross-entropy", "greedy", "random",
    "even", "memory-proportional", "speed-proportional",
)  # fmt: skip
MODELS = (
    "bert-large", "ctr", "gpt2", "llama-7b", "resnet-50", "resnet-152", "vit-large",
)  # fmt: skip
TYPES = (
    "H100-80G", "A100-80G", "A100-40G", "V100-32G", "V100-16G", "T4", "L4", "A10G", "RTX-3090",
    "RTX-4090",
)  # fmt: skip
INSIDE_BYTES_PER_S, BETWEEN_BYTES_PER_S = (12e9, 25e9, 150e9, 300e9), (1.25e9, 3.1e9, 12.5e9, 25e9)
BATCHES, SCHEDULES = (32, 128), ("1f1b", "gpipe")
# Beaten by more than these shares.
MARGINS = (0.005, 0.02, 0.05, 0.10)


class Outcome(NamedTuple):
    """One problem."""

    name: str
    auto_s: float
    best_s: float
    best: str
    closed_form_s: float
    cpu_s: float


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "", count="problems (160)")
    count = int(options.count or (QUICK_COUNT if options.quick else COUNT))
    outcomes = [found for index in range(count) if (found := outcome(options.seed, index))]
    excess = [found.auto_s / found.best_s - 1 for found in outcomes]
    summary = {
        "problems": len(outcomes),
        **{
            f"beaten_by_over_{100 * margin:g}_percent": sum(value > margin for value in excess)
            for margin in MARGINS
        },
        "worst_factor": 1 + max(excess),
        "won_by_over_0.5_percent": sum(value < -MARGINS[0] for value in excess),
        "mean_percent_above_best_other": 100 * statistics.mean(excess),
        "median_cpu_s_of_auto": statistics.median(found.cpu_s for found in outcomes),
        "longest_cpu_s_of_auto": max(found.cpu_s for found in outcomes),
    }
    worst = sorted(outcomes, key=lambda found: found.best_s / found.auto_s)[:20]
    report("auto against the others, simulated", [_row(found) for found in worst], summary, options)


def drawn_problem(seed: int, index: int) -> Problem:
    """A shipped model on a drawn cluster; whether it fits is not said."""
    rng = np.random.default_rng([seed, index])
    profile = load_profile(MODELS[index % len(MODELS)])
    job = Job.from_mapping(
        {
            "dtype": profile.dtype,
            "global_batch_size": int(rng.choice(BATCHES)),
            "schedule": str(rng.choice(SCHEDULES)),
        }
    )
    return Problem(profile, _cluster(rng), job)


def _cluster(rng: np.random.Generator) -> Cluster:
    nodes: list[Node] = []
    kinds = rng.choice(TYPES, size=int(rng.integers(1, 4)), replace=False)
    for kind in kinds:
        size, speed = int(rng.choice((1, 2, 4, 8))), float(rng.choice(INSIDE_BYTES_PER_S))
        for _ in range(int(rng.integers(1, 5))):
            number = len(nodes)
            group = DeviceGroup(name=f"d{number}", type=str(kind), count=size)
            link = Link(latency_s=5e-6, bandwidth_bytes_per_s=speed)
            nodes.append(Node(name=f"n{number}", devices=(group,), link=link))
    between = Link(latency_s=3e-5, bandwidth_bytes_per_s=float(rng.choice(BETWEEN_BYTES_PER_S)))
    return Cluster(name="drawn", nodes=tuple(nodes), inter_node_link=between)


def outcome(seed: int, index: int) -> Outcome | None:
    """None where nothing fits."""
    problem = drawn_problem(seed, index)
    start = time.process_time()
    try:
        auto = place(problem, "auto")
    except HeterpsError:
        return None
    cpu_s = time.process_time() - start
    found = {}
    for name in OTHERS:
        try:
            result = place(problem, name, budget=Budget(EVALUATIONS, seconds=20.0))
        except HeterpsError:
            continue
        found[name] = result.estimate.step_time_s
    best = min(found, key=lambda name: found[name])
    closed = auto.estimate.closed_form_step_time_s or 0.0
    shape = f"{problem.profile.name} {problem.job.schedule} {problem.job.global_batch_size} on " + (
        " ".join(f"{entry.count} {entry.name}" for entry in problem.classes)
    )
    return Outcome(f"{index}: {shape}", auto.estimate.step_time_s, found[best], best, closed, cpu_s)


def _row(found: Outcome) -> dict[str, Any]:
    return {
        "problem": found.name,
        "auto_ms": 1000 * found.auto_s,
        "closed_form_ms": 1000 * found.closed_form_s,
        "best_other_ms": 1000 * found.best_s,
        "best_other": found.best,
        "auto_over_best": found.auto_s / found.best_s,
        "auto_cpu_s": found.cpu_s,
    }


if __name__ == "__main__":
    main()
