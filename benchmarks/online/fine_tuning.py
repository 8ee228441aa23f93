"""Does PPO in the corrected simulator pay? Fine-tuned policy against more search, at equal CPU.

python benchmarks/online/online.py --only fine_tuning
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np

from benchmarks.agent.section import Row, TableRows, progress_bar
from benchmarks.online.drift_cases import TablesBelief, deployed, drifted, step_time_s
from benchmarks.online.section import SectionResult, Target
from benchmarks.shared.row_store import Settings
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.learned.beam import Scorer
from heterps_agents.learned.efforts import effort_named
from heterps_agents.learned.planner import DEFAULT_POLICY
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.search import learned_code
from heterps_agents.training.fine_tune import fine_tune
from heterps_envs.arrays import Code
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem_sets.chains import fingerprint
from heterps_envs.problem_sets.test_sets import DRAWN_CHAINS

Result = TypeVar("Result")

TITLE = "Fine-tuning against more search"
PROBLEMS, QUICK_PROBLEMS = 20, 2
# CPU seconds of PPO, and of the search that every policy gets besides.
FINE_TUNE_S, QUICK_FINE_TUNE_S, SEARCH_S = 2.5, 1.5, 0.5
EFFORT, WIDTHS = "high", (64, 128, 256, 512, 1024, 2048)
TUNED, SAME, MORE = "fine-tuned", "not tuned, same search", "not tuned, its CPU as search"
ALL = (TUNED, SAME, MORE)
TARGETS = [
    Target(
        "mean regret of fine-tuning less that of as much search, beyond exact, equal CPU",
        "fine-tuning less search, mean regret", 0.0, unit="%",
    )
]  # fmt: skip


def run(settings: Settings) -> SectionResult:
    """Three ways to spend CPU seconds on problems that were corrected once."""
    count = QUICK_PROBLEMS if settings.quick else PROBLEMS
    tune_s = QUICK_FINE_TUNE_S if settings.quick else FINE_TUNE_S
    problems = DRAWN_CHAINS["beyond-exact"].problems(count)
    store = settings.store("fine_tuning", problems=fingerprint(problems), seconds=tune_s)
    policy = Policy.load(DEFAULT_POLICY)
    _warm_up(policy, problems[0])
    with progress_bar("fine-tuning", count) as advance:
        for index, tables in enumerate(problems):
            if str(index) not in store:
                store.add(str(index), _found(policy, tables, settings.seed, index, tune_s))
            advance(f"problem {index}")
    found = [store[str(index)] for index in range(count)]
    rows = [_row(name, found) for name in ALL]
    means = {row["method"]: row["gap_mean"] for row in rows}
    summary: Row = {
        "problems": count,
        "fine-tuning less search, mean regret": means[TUNED] - means[MORE],
        **{f"mean regret, {name}": mean for name, mean in means.items()},
    }
    table = TableRows("fine tuning", "Regret against the best that is known", _note(tune_s), rows)
    return SectionResult([table], summary, store)


def _note(tune_s: float) -> str:
    return (
        "Problems of `beyond-exact` (48-128 layers, 8-12 device classes) that drifted as in the "
        "section on drift, and were corrected by one deployment of the plan that was found before. "
        f"PPO gets {tune_s:g} CPU seconds in the corrected simulator; then both policies search "
        f"for {SEARCH_S:g} CPU seconds (effort {EFFORT}, then ever wider beams around the best). "
        f"`{MORE}` searches for all of these seconds instead. Step times are closed-form ones in "
        "the corrected problem; regret is over the best of the three and of a search by the "
        "fine-tuned policy for as long again. CPU seconds are measured."
    )


def _found(policy: Policy, tables: CostTables, seed: int, index: int, tune_s: float) -> Row:
    """Step times in the corrected problem, and the CPU seconds that they took."""
    corrected, stale = _corrected(policy, tables, np.random.default_rng([seed, index]))
    kernel = kernel_tables(corrected)
    tuned, spent_s = _timed(lambda: fine_tune(policy, [corrected], seconds=tune_s, seed=seed))
    codes: dict[str, Code] = {}
    cpu_s: dict[str, float] = {}
    codes[TUNED], searched_s = _timed(lambda: search(tuned, corrected, SEARCH_S, stale))
    cpu_s[TUNED] = spent_s + searched_s
    codes[SAME], cpu_s[SAME] = _timed(lambda: search(policy, corrected, SEARCH_S, stale))
    codes[MORE], cpu_s[MORE] = _timed(lambda: search(policy, corrected, cpu_s[TUNED], stale))
    best = search(tuned, corrected, cpu_s[TUNED], codes[MORE])
    times = {name: step_time_s(code, kernel) for name, code in codes.items()}
    best_s = min(step_time_s(best, kernel), *times.values())
    return {
        "best_step_s": best_s,
        "stale_gap": step_time_s(stale, kernel) / best_s - 1,
        "gaps": {name: seconds / best_s - 1 for name, seconds in times.items()},
        "cpu_s": cpu_s,
        "updates": tuned.meta.get("fine_tuned_steps", 0),
    }


def _corrected(
    policy: Policy, tables: CostTables, rng: np.random.Generator
) -> tuple[CostTables, Code]:
    """What is believed of a drifted problem after one deployment, and the plan of that."""
    stale = search(policy, tables, SEARCH_S, None)
    belief = TablesBelief(tables)
    belief.observe(deployed(stale, drifted(tables, rng), rng))
    return belief.tables(), stale


def search(policy: Scorer, tables: CostTables, cpu_s: float, start: Code | None) -> Code:
    """The learned search for so many CPU seconds: its highest effort, then ever wider beams."""
    budget, code = Budget(cpu_seconds=cpu_s), start
    kernel, effort = kernel_tables(tables), effort_named(EFFORT)
    for width in WIDTHS:
        wider = effort
        if width > effort.width:
            wider = effort.changed(begins_with=None, first_width=width // 4, width=width, elite=8)
        code = learned_code(policy, Question(tables, kernel, Goal(), budget, start=code), wider)
        if budget.is_exhausted:
            break
    assert code is not None, "problems of this set have placements"
    return code


def _timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start_s = time.process_time()
    result = work()
    return result, time.process_time() - start_s


def _warm_up(policy: Policy, tables: CostTables) -> None:
    """Compilation and imports are no part of what is measured."""
    fine_tune(policy, [tables], seconds=2.0)
    search(policy, tables, 0.5, None)


def _row(name: str, found: list[Row]) -> Row:
    gaps = np.array([row["gaps"][name] for row in found])
    return {
        "method": name,
        "problems": len(gaps),
        "gap_median": float(np.median(gaps)),
        "gap_mean": float(gaps.mean()),
        "gap_p95": float(np.quantile(gaps, 0.95)),
        "best_of_all": int((gaps < 1e-9).sum()),
        "cpu_s": float(np.mean([row["cpu_s"][name] for row in found])),
        "better_than_more_search": _count(found, lambda gaps: gaps[name] < gaps[MORE] - 1e-9),
        "worse_than_more_search": _count(found, lambda gaps: gaps[name] > gaps[MORE] + 1e-9),
    }


def _count(found: list[Row], holds: Callable[[Mapping[str, float]], bool]) -> int:
    return sum(holds(row["gaps"]) for row in found)
