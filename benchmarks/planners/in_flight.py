"""What more micro-batches in flight than 1F1B's rule are worth in plans of `auto`, simulated.

    python benchmarks/planners/in_flight.py
    python benchmarks/planners/in_flight.py --quick --json in_flight.json

The problems are those of `benchmarks/planners/auto.py`, 1F1B alone, and all shipped models on all
shipped clusters. Each plan is simulated as it was answered and without its `in_flight`. What the
planner would have answered without that choice may be another plan.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Any

from benchmarks.planners.auto import drawn_problem
from benchmarks.shared.common import parse_options, report
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps_configs.errors import HeterpsError
from heterps_configs.library import shipped
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import simulated_step_time_s

COUNT, QUICK_COUNT = 120, 12
# Of the shipped clusters, those with so many devices at most.
MOST_DEVICES = 64


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "", count="drawn problems (120)")
    count = int(options.count or (QUICK_COUNT if options.quick else COUNT))
    drawn = [row for problem in _drawn(options.seed, count) if (row := _row(problem))]
    pairs = [] if options.quick else [row for problem in _pairs() if (row := _row(problem))]
    summary = {**_summary("drawn", drawn), **_summary("shipped", pairs)}
    rows = sorted([*drawn, *pairs], key=lambda row: row["without_over_with"], reverse=True)
    report("More in flight than 1F1B's rule, simulated", rows[:20], summary, options)


def _drawn(seed: int, count: int) -> Iterator[Problem]:
    for index in range(count):
        problem = drawn_problem(seed, index)
        if problem.job.schedule == "1f1b":
            yield problem


def _pairs() -> Iterator[Problem]:
    for model in shipped("models"):
        for cluster in shipped("clusters"):
            problem = load_problem(model, cluster)
            if len(problem.cluster.devices) <= MOST_DEVICES:
                yield problem


def _row(problem: Problem) -> dict[str, Any] | None:
    """None where nothing fits, or there is one stage alone."""
    try:
        result = place(problem, "auto")
    except HeterpsError:
        return None
    plan = result.plan
    if len(plan.stages) == 1:
        return None
    without = plan.changed(stages=tuple(stage.changed(in_flight=None) for stage in plan.stages))
    with_s = result.estimate.step_time_s
    return {
        "problem": f"{problem.profile.name} on {problem.cluster.name}, {len(plan.devices)} devices",
        "stages": len(plan.stages),
        "micro_batches": plan.job.num_micro_batches,
        "step_time_ms": 1000 * with_s,
        "without_over_with": simulated_step_time_s(result.problem, without) / with_s,
    }


def _summary(name: str, rows: list[dict[str, Any]]) -> dict[str, float]:
    if not rows:
        return {}
    gains = sorted(100 * (row["without_over_with"] - 1) for row in rows)
    return {
        f"{name}_problems": len(rows),
        f"{name}_gain_percent_mean": statistics.mean(gains),
        f"{name}_gain_percent_p95": gains[int(0.95 * (len(gains) - 1))],
        f"{name}_share_with_over_1_percent": sum(gain > 1 for gain in gains) / len(gains),
    }


if __name__ == "__main__":
    main()
