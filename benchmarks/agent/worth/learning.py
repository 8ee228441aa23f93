"""What learning adds: other weights in the very same compiled search, problem by problem.

python benchmarks/agent/agent.py --only learning
python benchmarks/agent/agent.py --only learning --policies A.npz,B.npz,C.npz --imitation I.npz
python benchmarks/agent/agent.py --only learning --sets development    # choices are made on these
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from benchmarks.agent.chain_methods import Chain, Run, cost, effort_methods
from benchmarks.agent.chains import chains_of
from benchmarks.agent.comparison import Entry
from benchmarks.agent.section import Row, SectionResult, Settings, TableRows, every
from benchmarks.agent.set_tables import digest, numbers, set_tables
from benchmarks.agent.worth.paired import paired
from benchmarks.agent.worth.plain_weights import by_price, untrained
from benchmarks.shared.row_store import RowStore
from heterps_agents.learned.policy import Policy
from heterps_envs.arrays import Code
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem_sets.chains import fingerprint
from heterps_envs.problem_sets.development import DEVELOPMENT_BEYOND, DEVELOPMENT_CHAINS
from heterps_envs.problem_sets.scale import SCALE_SETS
from heterps_envs.problem_sets.test_sets import chain_set

QUICK_PROBLEMS = 3
UNTRAINED_SEEDS = (0, 1, 2)
EFFORTS = ("policy, effort normal", "policy, effort high")
IN_RANGE = "development"
NOTES = {
    "in-range": "8-32 layers, 2-4 device classes, 1-4 devices of each class.",
    "development": "The sizes of in-range, drawn by the other generator.",
    "beyond-exact": "8-12 device classes, 48-128 layers, 2-4 devices of each class.",
    "scale": "Shipped models on 256 to 2,048 devices of 4 to 8 types, by the closed form.",
    "development-beyond-exact": "The sizes of beyond-exact, drawn by the other generator.",
    "development-large": "4-10 classes of 8-64 devices, drawn by the other generator.",
    "development-scale": "The sizes of scale, of other seeds.",
}


def run(settings: Settings) -> SectionResult:
    """Gaps of each set, and what each kind of weights costs more than the policy's."""
    sets = {
        name: chains_of(every(tables, QUICK_PROBLEMS if settings.quick else None))
        for name, tables in problems(settings.is_development).items()
    }
    policies = _policies(settings)
    lines = _entries(policies)
    store = settings.store(
        "learning",
        policies={name: digest(policy.weights) for name, policy in policies.items()},
        problems={name: fingerprint([c.tables for c in cases]) for name, cases in sets.items()},
    )
    tables = set_tables(
        "learning", sets, dict.fromkeys(sets, lines), cost, store, settings.seed, NOTES
    )
    gains = TableRows(
        "gains",
        "What other weights cost more than the policy's, in the same search",
        "Geometric means over the problems that both answered; intervals of 95 % by bootstrap.",
        [row for name in sets for row in _gains(name, len(sets[name]), policies, store)],
    )
    summary = {
        f"{row['set']}: {row['weights']}, {row['effort']}: {column}": row[column]
        for row in gains.rows
        for column in ("gain", "low", "high")
    }
    return SectionResult([gains, *tables], {**numbers(tables), **summary}, store)


def problems(is_development: bool) -> Mapping[str, list[CostTables]]:
    """A set in range and those beyond the exact solver: those of choices, or the frozen ones."""
    name = "development-scale" if is_development else "scale"
    scale = [problem.plain.tables for problem in SCALE_SETS[name].problems()]
    if is_development:
        drawn = {name: draw.problems() for name, draw in DEVELOPMENT_BEYOND.items()}
        return {IN_RANGE: DEVELOPMENT_CHAINS[IN_RANGE].problems(), **drawn, name: scale}
    return {**{each: chain_set(each) for each in ("in-range", "beyond-exact")}, name: scale}


def _policies(settings: Settings) -> dict[str, Policy]:
    """All weights by name, the shipped policy's first."""
    found = {"policy": Policy.load(settings.policy)}
    found |= {f"policy {name}": Policy.load(name) for name in settings.policies}
    if settings.imitation:
        found["imitation alone"] = Policy.load(settings.imitation)
    found["price weights"] = by_price()
    return found | {f"untrained {seed}": untrained(seed) for seed in UNTRAINED_SEEDS}


def _entries(policies: Mapping[str, Policy]) -> list[Entry[Chain, Code]]:
    methods: dict[str, dict[str, Run]] = {
        name: effort_methods(policy) for name, policy in policies.items()
    }
    return [
        Entry(_line(name, effort), partial(runs[effort]))
        for effort in EFFORTS
        for name, runs in methods.items()
    ]


def _line(name: str, effort: str) -> str:
    return f"{name}, {effort.removeprefix('policy, ')}"


def _gains(name: str, count: int, policies: Mapping[str, Policy], store: RowStore) -> list[Row]:
    rows = [store[f"{name}/{index}"] for index in range(count)]
    found = []
    for effort in EFFORTS:
        ours = [row[_line("policy", effort)]["cost"] for row in rows]
        for other in policies:
            if other == "policy":
                continue
            theirs = [row[_line(other, effort)]["cost"] for row in rows]
            of = {"set": name, "weights": other, "effort": effort.removeprefix("policy, effort ")}
            found.append({**of, **paired(ours, theirs)._asdict()})
    return found
