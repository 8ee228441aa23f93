"""How many walks by the clock share a number of changes: where one long walk and several short end.

    python benchmarks/planners/walk_lengths.py
    python benchmarks/planners/walk_lengths.py --quick --json walk_lengths.json

On development problems of many devices walks begin at the policy's placement, each with a seed of
its own, in every view of the problem; the best placements of each are simulated. A row says how far
the best simulated step of each way is above the best of all ways, and its processor seconds.
"""

from __future__ import annotations

import math
import statistics
import time
from typing import Any

from benchmarks.shared.common import parse_options, report
from heterps_agents.finishing.clock_walk import best_by_clock
from heterps_agents.finishing.simulated_costs import SimulatedCosts
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.learned.efforts import DEFAULT_EFFORT, effort_named
from heterps_agents.learned.planner import DEFAULT_POLICY
from heterps_agents.learned.policy import Policy
from heterps_agents.learned.search import learned_code
from heterps_agents.search.starts import simple_start
from heterps_envs.arrays import Code
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.scale import SCALE_SETS

# Walks, and changes of each.
WAYS = ((12, 6_000), (6, 12_000), (3, 24_000), (1, 72_000))
# Placements that are simulated, of all walks in a view together; of each walk so many at most.
SIMULATED, MOST_OF_EACH = 24, 8
# Positions in the set; the quick one is the least of them.
CASES, QUICK_CASES, SEEDS = (0, 3, 7, 10, 14, 17), (17,), 2


def main() -> None:
    """Runs the benchmark and prints its table."""
    options = parse_options(__doc__ or "")
    problems = [asked.plain for asked in SCALE_SETS["development-scale"].problems(0)]
    policy, rows = Policy.load(DEFAULT_POLICY), []
    for number in QUICK_CASES if options.quick else CASES:
        problem = problems[number]
        start = _start(problem, policy)
        for seed in range(1 if options.quick else SEEDS):
            rows.append({"problem": number, "devices": len(problem.cluster.devices), "seed": seed})
            rows[-1] |= _measured(problem, start, options.seed + 1000 * seed)
    report("Walks of unlike lengths", rows, _summary(rows), options)


def _start(problem: Problem, policy: Policy) -> Code:
    view = problem.views[-1]
    question = Question.of(view, Budget())
    question = question._replace(start=simple_start(view, question))
    code = learned_code(policy, question, effort_named(DEFAULT_EFFORT))
    assert code is not None, "all problems of the set that are asked have a placement"
    return code


def _measured(problem: Problem, start: Code, seed: int) -> dict[str, Any]:
    best_s, cpu_s = dict[str, float](), dict[str, float]()
    for number, changes in WAYS:
        name, begin = f"{number} x {changes:,}", time.process_time()
        best_s[name] = min(_best_s(view, start, number, changes, seed) for view in problem.views)
        cpu_s[name] = time.process_time() - begin
    least_s = min(best_s.values())
    above = {f"{name}, above %": round(100 * (s / least_s - 1), 2) for name, s in best_s.items()}
    return above | {f"{name}, CPU s": round(seconds, 1) for name, seconds in cpu_s.items()}


def _best_s(view: Problem, start: Code, number: int, changes: int, seed: int) -> float:
    """The best simulated step time of some walks, in seconds."""
    costs = SimulatedCosts(view, Question.of(view, Budget()), "walks")
    most = min(SIMULATED // number, MOST_OF_EACH)
    for walk in range(number):
        found = best_by_clock(view, Question.of(view, Budget(), seed + walk), [start], changes)
        costs.add_all(found[:most])
    fitting = (entry for entry in costs.best_first() if costs.fits(entry))
    best = next(fitting, None)
    return math.inf if best is None else costs.with_chosen_sums(best).cost


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    names = [name for name in rows[0] if name.endswith(("above %", "CPU s"))]
    return {f"{name}, mean": statistics.mean(row[name] for row in rows) for name in names}


if __name__ == "__main__":
    main()
