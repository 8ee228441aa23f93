"""How fast walks by the clock are, and how near its bound is to it.

    python benchmarks/planners/clock_walks.py
    python benchmarks/planners/clock_walks.py --quick --json clock_walks.json

On development problems of the field a walk begins at a greedy placement and has so many processor
seconds. Runs of the clock are timed on the placements that were the best on its way, beside its
bound, by which most changes are judged (`heterps_agents.finishing.clock_walk`). A call from Python
takes 3 us of either.
"""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.shared.common import parse_options, report
from heterps_agents.finishing.clock_walk import best_by_clock, clocked_costs
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.search.greedy import greedy_code
from heterps_envs.closed_form.objective import read_stages
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import CASES, field_problem
from heterps_envs.schedule.placement_clock import clocked_step_time_s, step_time_bound_s
from heterps_envs.schedule.shared_sums import shared_parameters

# Development problems have this seed, if none is given; of each family those of so many devices.
SEED, DEVICES, QUICK_DEVICES = 2210, range(4, 257), range(4, 9)
# Processor seconds of a walk; worse changes at first; runs of each placement that are timed.
WALK_CPU_S, QUICK_CPU_S, THRESHOLD, TIMED = 1.0, 0.1, 0.05, 20
ENDLESS = 1_000_000_000


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    devices, cpu_s = (QUICK_DEVICES, QUICK_CPU_S) if options.quick else (DEVICES, WALK_CPU_S)
    rows = []
    for case in CASES:
        problem = field_problem(case, options.seed or SEED)
        if len(problem.cluster.devices) in devices:
            row = _measured(problem, cpu_s)
            rows += [] if row is None else [{"problem": case.name, **row}]
    report("Walks by the clock", rows, _summary(rows), options)


def _measured(problem: Problem, cpu_s: float) -> dict[str, Any] | None:
    view = problem.by_each_node or problem.views[0]
    question = Question.of(view, Budget())
    start = greedy_code(question)
    if start is None or not math.isfinite(question.cost(start)):
        return None
    best_by_clock(view, question, [start], 1, THRESHOLD)  # compiled, or read from a cache
    walk = Question.of(view, Budget(cpu_seconds=cpu_s))
    codes = best_by_clock(view, walk, [start], ENDLESS, THRESHOLD)
    (start_s,), (best_s, *_) = (clocked_costs(view, question, each) for each in ([start], codes))
    shared, stages = shared_parameters(view.profile, view.tables.gradient_bytes), []
    for code in codes:
        rows = np.empty((question.kernel.num_layers, 3), np.int64)
        stages.append((rows, read_stages(code, rows)))
    run_s, run_us = _timed(clocked_step_time_s, stages, question.kernel, shared)
    bound_s, bound_us = _timed(step_time_bound_s, stages, question.kernel, shared)
    return {
        "devices": len(problem.cluster.devices),
        "micro_batches": problem.job.num_micro_batches,
        "stages": stages[0][1],
        "best over start": round(best_s / start_s, 3),
        "run us": round(run_us, 1),
        "bound us": round(bound_us, 2),
        "bound over run": round(statistics.median(np.array(bound_s) / run_s), 3),
        "largest": round(float(np.max(np.array(bound_s) / run_s)), 6),
    }


def _timed(
    function: Callable[..., float], stages: list[tuple[Any, int]], kernel: Any, shared: Any
) -> tuple[list[float], float]:
    """What a kernel says of some placements, and its microseconds for one (median)."""
    found, seconds = [], []
    for rows, count in stages:
        begin = time.process_time()
        for _ in range(TIMED):
            found_s = function(rows, count, kernel, shared)
        seconds.append((time.process_time() - begin) / TIMED)
        found.append(float(found_s))
    return found, 1e6 * statistics.median(seconds)


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = ("best over start", "run us", "bound us", "bound over run")
    found = {f"{name}, median": statistics.median(row[name] for row in rows) for name in names}
    return {**found, "bound over run, largest": max(row["largest"] for row in rows)}


if __name__ == "__main__":
    main()
