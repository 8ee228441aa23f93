"""Drift on real runs: emulated devices that are not as believed, against the plan that knows it.

python benchmarks/online/online.py --only real_drift
"""

from __future__ import annotations

import statistics

import numpy as np

from benchmarks.agent.section import Row, TableRows, progress_bar
from benchmarks.online.drift_cases import KIND_SIGMA, LAYER_SIGMA
from benchmarks.online.real_drift_cases import (
    CLUSTER,
    MEASURE_EVERY,
    MODEL,
    SETTLED_STEPS,
    adapted_run,
    believed_problem,
    best_plan,
    knowing_step_time_s,
    true_problem,
)
from benchmarks.online.section import SectionResult, Target
from benchmarks.shared.row_store import Settings
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate

TITLE = "Drift on emulated devices"
CASES, QUICK_CASES = 10, 1
TARGETS = [
    Target(
        "drift on real emulated runs, worst case: adapted throughput over that of the plan that "
        "knows the truth", "worst adapted share", 0.95, at_least=True, unit="%",
    )
]  # fmt: skip
NOTE = (
    f"The model {MODEL} on {CLUSTER}: processes that compute for real and sleep until the emulated "
    f"time. Types are drawn with sigma {KIND_SIGMA:g}, layers on a type with {LAYER_SIGMA:g}; the "
    f"planner believes other times. Measurements come every {MEASURE_EVERY} steps, plans are "
    f"searched in the background, and a run ends when {SETTLED_STEPS} steps went by under one plan "
    "without a search. Steps are medians of measured seconds: under the first plan, the last one, "
    "and the exact plan of the true times. Shares are of the throughput of the latter; the "
    "simulated one is of the adapted plan as the true times have it, which no busy host disturbs."
)


def run(settings: Settings) -> SectionResult:
    """Two runs for each case."""
    believed = believed_problem()
    count = QUICK_CASES if settings.quick else CASES
    store = settings.store("real_drift", steps=SETTLED_STEPS)
    with progress_bar("real drift", count) as advance:
        for index in range(count):
            if str(index) not in store:
                store.add(str(index), _row(believed, settings.seed, index))
            advance(f"case {index}")
    rows = [store[str(index)] for index in range(count)]
    shares = [row["adapted_share"] for row in rows]
    summary: Row = {
        "cases": count,
        "worst adapted share": min(shares),
        "median adapted share": statistics.median(shares),
        "worst simulated share": min(row["simulated_share"] for row in rows),
        "median stale share": statistics.median(row["stale_share"] for row in rows),
    }
    table = TableRows("real drift", "Measured throughput before and after adapting", NOTE, rows)
    return SectionResult([table], summary, store)


def _row(believed: Problem, seed: int, index: int) -> Row:
    truth = true_problem(believed, np.random.default_rng([seed, index]))
    stale, knowing = best_plan(believed), best_plan(truth)
    adapted = adapted_run(truth, believed, stale)
    knowing_s = knowing_step_time_s(truth, knowing)
    return {
        "case": index,
        "stale_step_s": adapted.first_step_s,
        "adapted_step_s": adapted.last_step_s,
        "knowing_step_s": knowing_s,
        "stale_share": knowing_s / adapted.first_step_s,
        "adapted_share": knowing_s / adapted.last_step_s,
        "simulated_share": estimate(truth, knowing).step_time_s
        / estimate(truth, adapted.plan).step_time_s,
        "plans": adapted.num_plans,
        "steps": adapted.num_steps,
        "messages": adapted.messages,
    }
