"""Hundreds and thousands of devices: planners on whole problems, judged by the simulator.

python benchmarks/agent/agent.py --only scale
python benchmarks/agent/agent.py --only scale --sets development    # choices are made on these
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from functools import partial

from benchmarks.agent.comparison import Entry
from benchmarks.agent.section import Row, SectionResult, Settings, TableRows
from benchmarks.agent.set_tables import digest, numbers, set_tables
from benchmarks.agent.worth.paired import paired
from benchmarks.agent.worth.plain_weights import by_price, untrained
from benchmarks.shared.row_store import RowStore
from heterps.micro_batches.place_result import PlaceResult
from heterps.planning.place import place
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.registry import planner_named
from heterps_agents.learned.efforts import with_effort
from heterps_agents.learned.planner import PolicyPlanner
from heterps_agents.learned.policy import Policy
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.chains import fingerprint
from heterps_envs.problem_sets.scale import SCALE_SETS

QUICK_PROBLEMS = 3
NORMAL, HIGH = "policy, effort normal", "policy, effort high"
SEARCHES = ("genetic", "annealing")
BEST = "best of all unlearned weights"
NOTE = (
    "Shipped models on {devices} devices of 4 to 8 types, simulated; planning and simulating "
    "together are what a line's CPU is."
)
Make = Callable[[int], Planner]


def run(settings: Settings) -> SectionResult:
    """One table, and each method beside the policy's efforts."""
    name = "development-scale" if settings.is_development else "scale"
    cases = [
        problem.plain
        for problem in SCALE_SETS[name].problems(QUICK_PROBLEMS if settings.quick else 0)
    ]
    policy = Policy.load(settings.policy)
    lines = entries(policy)
    store = settings.store(
        "scale",
        entries=[line.name for line in lines],
        policy=digest(policy.weights),
        problems=fingerprint([case.tables for case in cases]),
    )
    fewest, most = SCALE_SETS[name].devices
    notes = {name: NOTE.format(devices=f"{fewest:,} to {most:,}")}
    tables = set_tables(
        "scale", {name: cases}, {name: lines}, _step_time_s, store, settings.seed, notes
    )
    gains = TableRows(
        "gains",
        "What other methods cost more than the policy, problem by problem",
        "Geometric means; intervals of 95 % by bootstrap over the problems.",
        _gains(name, len(cases), lines, store),
    )
    return SectionResult([*tables, gains], numbers(tables), store)


def entries(policy: Policy) -> list[Entry[Problem, PlaceResult]]:
    """The lines of the table."""
    weights = {"price weights": by_price(), "untrained": untrained(0)}
    ours = {NORMAL: _with_policy(policy, "normal"), HIGH: _with_policy(policy, "high")}
    others = {
        f"{name}, effort high": partial(_placed, _with_policy(own, "high"))
        for name, own in weights.items()
    }
    lines = [Entry(name, partial(_placed, make)) for name, make in ours.items()]
    lines.append(Entry("auto", partial(_placed, partial(_named, "auto"))))
    lines += [Entry(name, run) for name, run in others.items()]
    # Together as much CPU as the policy: whoever knows no weights has to try several.
    lines += [
        Entry(name, run, cpu_of=HIGH, cpu_divisor=len(others)) for name, run in others.items()
    ]
    return lines + [
        Entry(search, partial(_placed, partial(_named, search)), cpu_of=HIGH) for search in SEARCHES
    ]


def _with_policy(policy: Policy, effort: str) -> Make:
    return lambda seed: with_effort(PolicyPlanner(seed, policy), effort)


def _named(name: str, seed: int) -> Planner:
    return planner_named(name, seed)


def _placed(make: Make, problem: Problem, budget: Budget, seed: int) -> PlaceResult | None:
    with contextlib.suppress(HeterpsError):
        return place(problem, make(seed), budget=budget)
    return None


def _step_time_s(problem: Problem, result: PlaceResult) -> float:
    return result.estimate.step_time_s


def _gains(
    name: str, count: int, lines: list[Entry[Problem, PlaceResult]], store: RowStore
) -> list[Row]:
    rows = [store[f"{name}/{index}"] for index in range(count)]
    found = []
    for ours in (NORMAL, HIGH):
        own = [row[ours]["cost"] for row in rows]
        for line in lines:
            if line.name not in (NORMAL, HIGH):
                theirs = [row[line.name]["cost"] for row in rows]
                found.append({"ours": ours, "method": line.name, **paired(own, theirs)._asdict()})
        for is_equal, method in ((False, BEST), (True, f"{BEST}, CPU of effort high together")):
            unlearned = [line.name for line in lines if _is_unlearned(line, is_equal)]
            least = [_least(row[name]["cost"] for name in unlearned) for row in rows]
            found.append({"ours": ours, "method": method, **paired(own, least)._asdict()})
    return found


def _is_unlearned(line: Entry[Problem, PlaceResult], shares_cpu: bool) -> bool:
    is_one = line.method.startswith(("price weights", "untrained"))
    return is_one and (line.cpu_divisor > 1) == shares_cpu


def _least(costs: Iterable[float | None]) -> float | None:
    known = [cost for cost in costs if cost is not None]
    return min(known, default=None)
