"""Chains: every method on the frozen test sets, from problems like those trained on to real ones.

python benchmarks/agent/agent.py --only chains
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from benchmarks.agent.chain_methods import Chain, cost, entries, learner_entries
from benchmarks.agent.section import SectionResult, Settings, every
from benchmarks.agent.set_tables import digest, numbers, set_tables
from heterps_agents.learned.policy import Policy
from heterps_envs.closed_form.bounds import price_bound
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem_sets.chains import fingerprint
from heterps_envs.problem_sets.test_sets import CHAIN_SETS, chain_set

QUICK_PROBLEMS = 4
NOTES = {
    "in-range": "Sizes that policies are trained on: 8-32 layers, 2-4 device classes.",
    "longer": "Three times longer than trained on: 64-96 layers.",
    "more-types": "More device classes than trained on: 5-6.",
    "beyond-exact": "8-12 device classes, 48-128 layers, where the exact solver stops.",
    "real": "Every shipped model on every shipped cluster that has the memory for it.",
    "published": "Profiles, clusters and links published by Sailor, Galvatron, PipeEdge, DT-FM.",
}


def run(settings: Settings) -> SectionResult:
    """One table for each test set."""
    policy = Policy.load(settings.policy)
    names = [name for name in CHAIN_SETS if name != "published" or settings.workloads]
    sets = {name: problems_of(name, settings) for name in names}
    lines = {name: entries(policy, settings.quick) for name in names}
    if not settings.quick:
        lines["in-range"] += learner_entries()
    store = settings.store(
        "chains",
        entries={name: [e.name for e in entries] for name, entries in lines.items()},
        policy=digest(policy.weights),
        problems={name: fingerprint([c.tables for c in cases]) for name, cases in sets.items()},
    )
    tables = set_tables("chains", sets, lines, cost, store, settings.seed, NOTES)
    return SectionResult(tables, numbers(tables), store)


def problems_of(name: str, settings: Settings) -> list[Chain]:
    """A set's problems that may have a placement."""
    tables = chain_set(name, settings.workloads)
    return chains_of(every(tables, QUICK_PROBLEMS if settings.quick else None))


def chains_of(tables: Sequence[CostTables], goal: Goal | None = None) -> list[Chain]:
    """Problems as methods get them; those that have a layer without any device are left out."""
    return [
        Chain(entry, kernel_tables(entry), goal or Goal())
        for entry in tables
        if math.isfinite(price_bound(entry)[0])
    ]
