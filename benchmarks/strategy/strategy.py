"""A planner against the best even plan: what choosing strategies is worth, by the simulator.

    python benchmarks/strategy/strategy.py --quick
    python benchmarks/strategy/strategy.py --json strategy.json --part frozen
    python benchmarks/strategy/strategy.py --only 0,14 --planner ppo

Forty problems (`problems.py`), half of them for development, half frozen. Both have the
best of all micro-batch sizes. `times faster` is the even plan's simulated step time over the
planner's: above 1 the planner is better.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.shared.common import parse_options, report
from benchmarks.strategy.problems import CASES, QUICK, Case, part_of, problem_of
from heterps.planning.strategies import place_over_sizes
from heterps_agents.finishing.reduce_choice import choose_reduce
from heterps_agents.search.uniform import UniformPlan, micro_batch_candidates, uniform_plans
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem

Row = dict[str, Any]
# Two simulations of one plan agree to this; a planner no worse than it is not worse.
SAME = 1 - 1e-6


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(
        __doc__ or "",
        only="indices of problems, by commas",
        part="development or frozen; by default both",
        planner="a planner's name; by default auto",
    )
    indices: Sequence[int] = QUICK if options.quick else range(len(CASES))
    if options.only:
        indices = [int(each) for each in options.only.split(",")]
    if options.part not in (None, "development", "frozen"):
        sys.exit(f"error: --part {options.part}: development or frozen")
    wanted = [index for index in indices if options.part in (None, part_of(index))]
    rows = []
    for index in wanted:
        print(f"{index} {CASES[index].name} ...", file=sys.stderr, flush=True)
        rows.append(_row(index, CASES[index], options.planner or "auto"))
    report("strategies against even plans", rows, summary_of(rows), options)


def summary_of(rows: Sequence[Row]) -> Row:
    """How often the planner is not worse, and by how much it is better.

    A problem that the planner has no plan for, and the baseline has one, counts as worse; it is in
    no mean. Where the baseline has none, any plan is not worse.
    """
    known = [row for row in rows if row["times_faster"] is not None]
    mixed = [row["times_faster"] for row in known if row["mixed"] == "yes"]
    equal = [row["times_faster"] for row in known if row["mixed"] == "no"]
    return {
        "problems": len(rows),
        "never worse": sum(_is_no_worse(row) for row in rows),
        "planner has no plan": sum(row["planner_s"] is None for row in rows),
        "uniform-3d has no plan": sum(row["uniform_s"] is None for row in rows),
        "geometric mean mixed": statistics.geometric_mean(mixed) if mixed else math.nan,
        "worst mixed": min(mixed, default=math.nan),
        "geometric mean equal": statistics.geometric_mean(equal) if equal else math.nan,
        "worst equal": min(equal, default=math.nan),
    }


def _is_no_worse(row: Row) -> bool:
    if row["uniform_s"] is None or row["planner_s"] is None:
        return row["uniform_s"] is None
    return bool(row["times_faster"] >= SAME)


def _row(index: int, case: Case, planner: str) -> Row:
    problem = problem_of(case)
    start = time.process_time()
    best = _best_even(problem)
    uniform_cpu_s = time.process_time() - start
    planner_s, note, start = None, "", time.process_time()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = place_over_sizes(problem, planner)
        planner_s, note = (
            found.estimate.step_time_s,
            f"micro-batch {found.plan.job.micro_batch_size}",
        )
    except HeterpsError as error:
        note = str(error)[:60]
    has_both = best is not None and planner_s is not None
    return {
        "index": index,
        "part": part_of(index),
        "problem": case.name,
        "devices": case.num_devices,
        "mixed": "yes" if case.is_mixed else "no",
        "uniform_s": best and best.cost,
        "uniform": best and _text(best),
        "uniform_cpu_s": uniform_cpu_s,
        "planner_s": planner_s,
        "planner_cpu_s": time.process_time() - start,
        "times_faster": best.cost / planner_s if has_both and best and planner_s else None,
        "note": note,
    }


def _best_even(problem: Problem) -> UniformPlan | None:
    """Of all micro-batch sizes, gradient sums beside or after the passes."""
    found = []
    for each in uniform_plans(problem, micro_batch_candidates(problem)):
        plan = choose_reduce(replace(problem, job=each.plan.job), each.plan)
        found.append(each._replace(plan=plan, cost=plan.predicted_step_time_s or each.cost))
    return min(found, key=lambda each: each.cost, default=None)


def _text(found: UniformPlan) -> str:
    """Such as `dp 2 tp 4 pp 1 mb 2 recompute`."""
    shape, job = found.strategy.shape, found.plan.job
    words = [
        f"dp {shape.num_replicas} tp {shape.degree} pp {shape.num_stages}",
        f"mb {job.micro_batch_size}",
        "recompute" if found.strategy.recomputes else "",
        "sharded" if found.strategy.shards_state else "",
        "by pipeline" if shape.is_by_pipeline else "",
    ]
    return " ".join(filter(None, words))


if __name__ == "__main__":
    main()
