"""What `auto` answers beside the best plan that any planner finds, all as simulated.

python benchmarks/agent/agent.py --only simulated
python benchmarks/agent/agent.py --only simulated --sets development    # choices are made on these

The problems are those of `benchmarks/planners/auto.py`: shipped models on drawn clusters.
"""

from __future__ import annotations

import numpy as np

from benchmarks.agent.section import Row, SectionResult, Settings, TableRows, progress_bar
from benchmarks.planners.auto import EVALUATIONS, OTHERS, outcome

PROBLEMS, DEVELOPMENT_PROBLEMS, QUICK_PROBLEMS = 100, 36, 4
# Settings of `auto` are chosen on seeds below; the frozen ones begin there.
FROZEN_SEED = 1000
NOTE = (
    f"Gaps are of the simulated step over the best of `auto` and of {len(OTHERS)} other planners "
    f"at {EVALUATIONS:,} evaluations each, whose finds the simulator chooses from and goes on from."
)


def run(settings: Settings) -> SectionResult:
    """One line: how far `auto` is from the best plan known, and how often it is the best."""
    count = DEVELOPMENT_PROBLEMS if settings.is_development else PROBLEMS
    count = QUICK_PROBLEMS if settings.quick else count
    seed = settings.seed + (0 if settings.is_development else FROZEN_SEED)
    store = settings.store("simulated", seed=seed, others=OTHERS, evaluations=EVALUATIONS)
    with progress_bar("simulated", count) as advance:
        for index in range(count):
            if str(index) not in store:
                found = outcome(seed, index)
                store.add(str(index), {} if found is None else found._asdict())
            advance("simulated")
    rows = [row for index in range(count) if (row := store[str(index)])]
    name = "development" if settings.is_development else "frozen"
    table = TableRows(name, f"auto as simulated: {name}", NOTE, [_line(rows), *_worst(rows)])
    summary = {f"simulated: {name}: {key}": value for key, value in _line(rows).items()}
    return SectionResult([table], summary, store)


def _line(rows: list[Row]) -> Row:
    gaps = np.array([max(0.0, row["auto_s"] / row["best_s"] - 1) for row in rows])
    return {
        "problem": f"all {len(rows)}",
        "gap_mean": float(gaps.mean()),
        "gap_p95": float(np.quantile(gaps, 0.95)),
        "gap_largest": float(gaps.max()),
        "best by": "",
        "cpu_ms": 1e3 * float(np.median([row["cpu_s"] for row in rows])),
    }


def _worst(rows: list[Row], most: int = 5) -> list[Row]:
    """The problems on which another planner is furthest ahead."""
    behind = [row for row in rows if row["auto_s"] > row["best_s"]]
    behind.sort(key=lambda row: row["best_s"] / row["auto_s"])
    return [
        {
            "problem": row["name"],
            "gap_largest": row["auto_s"] / row["best_s"] - 1,
            "best by": row["best"],
            "cpu_ms": 1e3 * row["cpu_s"],
        }
        for row in behind[:most]
    ]
