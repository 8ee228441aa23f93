"""Drift, simulated: how far plans are from the optimum of the truth, deployment by deployment.

python benchmarks/online/online.py --only drift
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from benchmarks.agent.section import Row, TableRows, progress_bar
from benchmarks.online.drift_cases import KIND_SIGMA, LAYER_SIGMA, NOISE_SIGMA, drifted, step_time_s
from benchmarks.online.drift_methods import ADAPTATIONS, FINE_TUNE_S, Case
from benchmarks.online.section import SectionResult, Target
from benchmarks.shared.row_store import Settings
from heterps_agents.exact.solve import solve
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem_sets.chains import fingerprint
from heterps_envs.problem_sets.test_sets import DRAWN_CHAINS

TITLE = "Drift, simulated"
PROBLEMS, QUICK_PROBLEMS, FINE_TUNED_PROBLEMS = 80, 8, 16
DEPLOYMENTS, MANY_DEPLOYMENTS = (1, 2, 4, 8), (1, 2, 4, 8, 50, 500)
CLIMB, FINE_TUNED = "black-box hill climb", "belief + fine-tuned policy's beam"
MAIN = "belief + exact, explores"
TARGETS = [
    Target("drift, median regret after 1 deployment", "median after 1", 0.01, unit="%"),
    Target("drift, median regret after 2 deployments", "median after 2", 1e-4, unit="%"),
    Target("drift, p95 of the regret after 8 deployments", "p95 after 8", 0.025, unit="%"),
    Target(
        "the same without exploration, best plan that was deployed",
        "p95 after 8, no exploration, best so far", 0.025, unit="%",
    ),
]  # fmt: skip
NOTE = (
    f"Log-normal drift: device classes sigma {KIND_SIGMA:g}, layers on a class {LAYER_SIGMA:g}; "
    f"every pass of a stage is measured with {NOISE_SIGMA:.0%} noise. Regret: true closed-form "
    "step time over the exact optimum of the truth, less 1, in the median, mean and 95th "
    "percentile. It is that of the plan that is kept after so many measured deployments; `gap "
    "best` is that of the best plan up to then, of which a user cannot know which it is. "
    f"Fine-tuning takes {FINE_TUNE_S:g} s after each deployment, on the first "
    f"{FINE_TUNED_PROBLEMS} problems alone."
)


def run(settings: Settings) -> SectionResult:
    """Every adaptation on the first problems of `in-range`, which nothing here was chosen on."""
    problems = DRAWN_CHAINS["in-range"].problems(QUICK_PROBLEMS if settings.quick else PROBLEMS)
    store = settings.store("drift", problems=fingerprint(problems), fine_tune_s=FINE_TUNE_S)
    most = 2 if settings.quick else FINE_TUNED_PROBLEMS
    wanted = [
        (method, index)
        for method in ADAPTATIONS
        for index in range(most if method == FINE_TUNED else len(problems))
    ]
    with progress_bar("drift", len(wanted)) as advance:
        for method, index in wanted:
            key = f"{method} {index}"
            if key not in store:
                store.add(key, {"regrets": _regrets(method, problems[index], settings.seed, index)})
            advance(key)
    regrets = {
        method: np.array(
            [store[f"{name} {index}"]["regrets"] for name, index in wanted if name == method]
        )
        for method in ADAPTATIONS
    }
    rows = [row for method, values in regrets.items() for row in _rows(method, values)]
    stale = _row("stale plan", 0, regrets[MAIN])
    table = TableRows("drift", "Regret against the optimum of the truth", NOTE, [stale, *rows])
    return SectionResult([table], _summary(rows), store)


def _regrets(method: str, tables: CostTables, seed: int, index: int) -> list[float]:
    """Of the plans that are kept, after 0, 1, 2, ... measured deployments."""
    drift_rng, rng = (np.random.default_rng([seed, index, part]) for part in range(2))
    truth = drifted(tables, drift_rng)
    kernel = kernel_tables(truth)
    start = solve(kernel_tables(tables)).code
    optimum_s = solve(kernel).step_time_s
    assert start is not None, "problems of this set have placements"
    case = Case(tables, truth, start)
    count = max(MANY_DEPLOYMENTS if method == CLIMB else DEPLOYMENTS)
    kept = itertools.islice(ADAPTATIONS[method](case, rng), count)
    return [step_time_s(code, kernel) / optimum_s - 1 for code in (start, *kept)]


def _rows(method: str, regrets: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> list[Row]:
    counts: Sequence[int] = MANY_DEPLOYMENTS if method == CLIMB else DEPLOYMENTS
    return [_row(method, count, regrets) for count in counts]


def _row(
    method: str, count: int, regrets: np.ndarray[tuple[int, ...], np.dtype[np.float64]]
) -> Row:
    kept, best = regrets[:, count], regrets[:, : count + 1].min(axis=1)
    return {
        "method": method,
        "deployments": count,
        "problems": len(kept),
        "gap_median": float(np.median(kept)),
        "gap_mean": float(kept.mean()),
        "gap_p95": float(np.quantile(kept, 0.95)),
        "gap_best_median": float(np.median(best)),
        "gap_best_p95": float(np.quantile(best, 0.95)),
    }


def _summary(rows: Sequence[Row]) -> Row:
    """What is asked for, of the plan that is kept; beside it the best plan so far."""
    summary: Row = {}
    for row in rows:
        count = row["deployments"]
        if row["method"] == MAIN:
            for name in ("median", "mean", "p95"):
                summary[f"{name} after {count}"] = row[f"gap_{name}"]
        if row["method"] == "belief + exact":
            for name in ("median", "p95"):
                key = f"{name} after {count}, no exploration, best so far"
                summary[key] = row[f"gap_best_{name}"]
    return summary
