"""Planners against the best even plan, and against each other: what choosing strategies is worth.

    python benchmarks/strategy/strategy.py --quick
    python benchmarks/strategy/strategy.py --planner auto,ppo --part development --keep rows.jsonl
    python benchmarks/strategy/strategy.py --only 0,14 --planner ppo

Forty problems (`problems.py`), half of them for development, half frozen, and forty drawn ones
(`drawn.py`), for development too. All have the best of all
micro-batch sizes, by the simulator. `times faster` is the even plan's step time over the planner's:
above 1 the planner is better. `gap` is the planner's step time over the shortest that any planner
of this run found, or the even plan has, less 1. With `--keep` finished rows are kept in a file: a
run that was interrupted goes on where it was.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.shared.common import parse_options, report
from benchmarks.shared.row_store import RowStore
from benchmarks.strategy.cases import Case
from benchmarks.strategy.problems import CASES, PARTS, QUICK, part_of, problem_of
from heterps.planning.place import place
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_agents.search.uniform import NAME as EVEN
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
        part="development, frozen or drawn; by default all",
        planner="planners' names, by commas; by default auto",
        keep="file of finished rows, for a run that goes on where it was interrupted",
    )
    indices: Sequence[int] = QUICK if options.quick else range(len(CASES))
    if options.only:
        indices = [int(each) for each in options.only.split(",")]
    if options.part not in (None, *PARTS):
        sys.exit(f"error: --part {options.part}: {', '.join(PARTS)}")
    wanted = [index for index in indices if options.part in (None, part_of(index))]
    planners = (options.planner or "auto").split(",")
    store = RowStore(options.keep and Path(options.keep), {"seed": options.seed})
    for index in wanted:
        for name in (EVEN, *planners):
            if _key(index, name) not in store:
                print(f"{index} {CASES[index].name}: {name} ...", file=sys.stderr, flush=True)
                store.add(_key(index, name), _measured(CASES[index], name, options.seed))
    rows = [row for index in wanted for row in _rows(index, planners, store)]
    summary = {
        f"{name}: {key}": value
        for name in planners
        for key, value in summary_of([row for row in rows if row["planner"] == name]).items()
    }
    report("strategies against even plans", rows, summary, options)


def summary_of(rows: Sequence[Row]) -> Row:
    """How often a planner is not worse, by how much it is better, and how far from the best.

    A problem that the planner has no plan for, and the baseline has one, counts as worse; it is in
    no mean. Where the baseline has none, any plan is not worse.
    """
    known = [row for row in rows if row["times_faster"] is not None]
    mixed = [row["times_faster"] for row in known if row["mixed"] == "yes"]
    equal = [row["times_faster"] for row in known if row["mixed"] == "no"]
    gaps = sorted(row["gap"] for row in rows if row["gap"] is not None)
    return {
        "problems": len(rows),
        "never worse": sum(_is_no_worse(row) for row in rows),
        "has no plan": sum(row["planner_s"] is None for row in rows),
        f"{EVEN} has no plan": sum(row["even_s"] is None for row in rows),
        "geometric mean mixed": statistics.geometric_mean(mixed) if mixed else math.nan,
        "worst mixed": min(mixed, default=math.nan),
        "geometric mean equal": statistics.geometric_mean(equal) if equal else math.nan,
        "worst equal": min(equal, default=math.nan),
        "median gap": statistics.median(gaps) if gaps else math.nan,
        "p95 gap": gaps[math.ceil(0.95 * len(gaps)) - 1] if gaps else math.nan,
        "largest gap": max(gaps, default=math.nan),
    }


def _is_no_worse(row: Row) -> bool:
    if row["even_s"] is None or row["planner_s"] is None:
        return row["even_s"] is None
    return bool(row["times_faster"] >= SAME)


def _key(index: int, planner: str) -> str:
    return f"{index} {planner}"


def _rows(index: int, planners: Sequence[str], store: RowStore) -> list[Row]:
    """One for each planner: what was measured, beside the others."""
    found = {name: store[_key(index, name)] for name in (EVEN, *planners)}
    times = [each["step_time_s"] for each in found.values() if each["step_time_s"] is not None]
    least = min(times, default=None)
    return [_beside(index, name, found, least) for name in planners]


def _beside(index: int, name: str, found: Mapping[str, Row], least: float | None) -> Row:
    case, own_s, even_s = CASES[index], found[name]["step_time_s"], found[EVEN]["step_time_s"]
    has_both = own_s is not None and even_s is not None
    return {
        "index": index,
        "part": part_of(index),
        "problem": case.name,
        "devices": case.num_devices,
        "mixed": "yes" if case.is_mixed else "no",
        "even_s": even_s,
        "even": found[EVEN]["how"],
        "planner": name,
        "planner_s": own_s,
        "planner_cpu_s": found[name]["cpu_s"],
        "how": found[name]["how"],
        "times_faster": even_s / own_s if has_both else None,
        "gap": None if own_s is None or least is None else own_s / least - 1,
    }


def _measured(case: Case, planner: str, seed: int) -> Row:
    """A planner's best of all micro-batch sizes; no step time where there is none."""
    problem, start = problem_of(case), time.process_time()
    step_time_s, how = _even(problem) if planner == EVEN else _planned(problem, planner, seed)
    return {"step_time_s": step_time_s, "how": how, "cpu_s": time.process_time() - start}


def _planned(problem: Problem, planner: str, seed: int) -> tuple[float | None, str]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            found = place(problem, planner, seed=seed)
    except HeterpsError as error:
        return None, str(error)[:60]
    return found.estimate.step_time_s, f"micro-batch {found.plan.job.micro_batch_size}"


def _even(problem: Problem) -> tuple[float | None, str]:
    """Of all micro-batch sizes, gradient sums beside or after the passes."""
    found = []
    for each in uniform_plans(problem, micro_batch_candidates(problem)):
        plan = choose_reduce(replace(problem, job=each.plan.job), each.plan)
        found.append(each._replace(plan=plan, cost=plan.predicted_step_time_s or each.cost))
    best = min(found, key=lambda each: each.cost, default=None)
    return (None, "") if best is None else (best.cost, _text(best))


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
