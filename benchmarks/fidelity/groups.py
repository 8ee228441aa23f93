"""Runs in tensor-parallel groups: step time and peak memory, predicted and measured.

    python benchmarks/fidelity/fidelity.py --only groups --json out.json

Random plans on four equal emulated devices: groups of one to four, even and uneven, in chains and
as replicas, with recompute, offload and shared state; the last ones keep some layers whole, or
split them by batch. The devices are slow enough that what a host takes for a pass, and for its sums
over a group, is far below what they emulate. Each model is profiled once; nothing is fitted on the
rows. Interrupted, the same command goes on where it was (with --json only).
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.fidelity.group_plans import Unsplit, described, drawn
from benchmarks.fidelity.own_errors import memory_errors, summary
from benchmarks.fidelity.own_models import GROUPED, Case
from benchmarks.fidelity.own_plans import HOST
from benchmarks.fidelity.own_runs import EMULATED_STEPS, run_row
from benchmarks.shared.common import machine
from benchmarks.shared.row_store import Row, RowStore
from heterps_configs.documents.model_profile import ModelProfile
from heterps_runtime.profiling.profiler import measure
from heterps_runtime.results.phases import WARM_UP_STEPS

NUM_PLANS, QUICK_PLANS = 30, 3
# Behind those, plans whose groups do not split all layers, and that split some by batch: for these,
# micro-batches are larger.
NUM_WHOLE, NUM_BY_BATCH = 6, 6
BATCH_CASES = tuple(replace(case, micro_batch_size=6, slowdown=30) for case in GROUPED)


def rows(
    workloads: Path | None, quick: bool, seed: int, partial_file: Path | None = None
) -> tuple[list[Row], Row]:
    """All rows, and the errors over all of them.

    Args:
        workloads: Not needed.
        quick: A few plans.
        seed: Of plans, parameters and data.
        partial_file: Where finished rows are kept; a run that finds them goes on after them.
    """
    del workloads
    store = RowStore(partial_file, {"groups": True, "quick": quick, "seed": seed, **machine()})
    profiles: dict[str, ModelProfile] = {}
    found = []
    for number in range(QUICK_PLANS if quick else NUM_PLANS + NUM_WHOLE + NUM_BY_BATCH):
        cases = GROUPED if number < NUM_PLANS + NUM_WHOLE else BATCH_CASES
        key, case = f"plan {number}", cases[number % len(cases)]
        if key not in store:
            name = f"{case.name} {case.micro_batch_size}"
            if name not in profiles:
                profiles[name] = measure(case.profile(), HOST, (case.micro_batch_size,))
            store.add(key, _row(profiles[name], case, number, seed))
        found.append(store[key])
        print(_line(number, store[key]), flush=True)
    return found, summarise(found)


def _row(profile: ModelProfile, case: Case, number: int, seed: int) -> Row:
    by_batch = number >= NUM_PLANS + NUM_WHOLE
    unsplit: Unsplit = "by batch" if by_batch else "whole" if number >= NUM_PLANS else "none"
    problem, plan = drawn(profile, case, random.Random(f"{seed} {number}"), unsplit)
    return {
        "part": "groups",
        "model": case.name,
        "plan": described(plan),
        "schedule": problem.job.schedule,
        "slowdown": case.slowdown,
        **run_row(
            problem, plan, steps=WARM_UP_STEPS + EMULATED_STEPS, seed=seed, tick=lambda text: None
        ),
    }


def _line(number: int, row: Row) -> str:
    return (
        f"plan {number}: {row['model']}, {row['plan']}, {row['schedule']}: step time "
        f"{100 * row['error']:+.2f} %, memory {100 * row['memory_error']:+.2f} %"
    )


def summarise(found: Sequence[Row]) -> Row:
    """Errors over all plans, and over all ranks of all plans."""
    return {
        **summary("groups_step_time", [row["error"] for row in found]),
        **summary("groups_memory", [e for row in found for e in memory_errors(row["memory"])]),
        "groups_runs": len(found),
        "groups_flagged": sum(row["is_flagged"] for row in found),
    }


def shown(found: Sequence[Row]) -> list[Row]:
    """The rows of the printed table."""
    return [
        {
            "model": row["model"],
            "plan": row["plan"],
            "schedule": row["schedule"],
            "predicted_ms": 1e3 * row["predicted_s"],
            "measured_ms": 1e3 * row["measured_s"],
            "error_%": 100 * row["error"],
            "spread_%": 100 * row["spread"],
            "overruns_%": 100 * row["overruns"],
            "memory_error_%": 100 * row["memory_error"],
        }
        for row in found
    ]
