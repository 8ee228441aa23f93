"""Training: how fast policies learn, and how much the seed matters.

python benchmarks/agent/agent.py --only training
python benchmarks/agent/agent.py --only training --policies a/policy.npz,b/policy.npz,c/policy.npz
"""

from __future__ import annotations

from collections.abc import Mapping

from benchmarks.agent.chain_methods import (
    Chain,
    Run,
    cost,
    decoding_methods,
    effort_methods,
    exact_entry,
)
from benchmarks.agent.chains import NOTES, problems_of
from benchmarks.agent.comparison import Entry
from benchmarks.agent.section import Row, SectionResult, Settings, TableRows
from benchmarks.agent.set_tables import digest, numbers, set_tables
from benchmarks.agent.training_runs import given_runs, shipped_seeds, trained_policies
from heterps_agents.learned.policy import Policy
from heterps_envs.arrays import Code

SETS, QUICK_SETS = ("in-range", "longer", "more-types"), ("in-range",)
# Of several seeds the worst is where these are largest, or smallest.
WORST = {
    "gap_median": max, "gap_mean": max, "gap_p95": max, "infeasible": max, "cpu_ms": max,
    "optimal": min,
}  # fmt: skip


def run(settings: Settings) -> SectionResult:
    """How policies were trained, and their scores on test sets side by side."""
    if settings.policies:
        policies = _named({name: Policy.load(name) for name in settings.policies})
        runs = given_runs(policies, settings.policies)
    else:
        runs, policies = trained_policies(settings)
    names = QUICK_SETS if settings.quick else SETS
    sets = {name: problems_of(name, settings) for name in names}
    lines = _entries(policies, settings.quick)
    store = settings.store(
        "training",
        policies={name: digest(policy.weights) for name, policy in policies.items()},
        entries=[entry.name for entry in lines],
    )
    scores = set_tables(
        "training", sets, dict.fromkeys(sets, lines), cost, store, settings.seed, NOTES
    )
    seeds = shipped_seeds(Policy.load(settings.policy))
    tables = [
        *([seeds] if seeds else []),
        runs,
        *(with_worst(table, list(policies)) for table in scores),
    ]
    return SectionResult(tables, numbers(scores), store)


def _named(policies: Mapping[str, Policy]) -> dict[str, Policy]:
    """By the seed they were trained with where no two share it, else by file."""
    seeds = [policy.meta.get("seed") for policy in policies.values()]
    if None in seeds or len(set(seeds)) < len(seeds):
        return dict(policies)
    return {f"seed {p.meta['seed']}": p for p in policies.values()}


def _entries(policies: Mapping[str, Policy], quick: bool) -> list[Entry[Chain, Code]]:
    """Every decoding of every policy, a decoding's policies one below the other."""
    lines = [exact_entry(quick)]
    methods = {name: _methods(policy) for name, policy in policies.items()}
    for decoding in next(iter(methods.values())):
        for name, runs in methods.items():
            lines.append(Entry(f"{decoding}, {name}", runs[decoding]))
    return lines


def _methods(policy: Policy) -> dict[str, Run]:
    return {**decoding_methods(policy), **effort_methods(policy)}


def with_worst(table: TableRows, policies: list[str]) -> TableRows:
    """The table with a line for the worst policy below each decoding, number by number."""
    rows: list[Row] = []
    for row in table.rows:
        rows.append(row)
        method, _, policy = row["method"].rpartition(", ")
        if len(policies) > 1 and policy == policies[-1]:
            same = [r for r in table.rows if r["method"].rpartition(", ")[0] == method]
            numbers = {name: worst(r[name] for r in same) for name, worst in WORST.items()}
            rows.append({**row, "method": f"{method}, worst of {len(policies)}", **numbers})
    return table._replace(rows=rows)
