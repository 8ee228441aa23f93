"""Graphs on concrete devices: every method on the frozen test sets of operator and layer graphs.

python benchmarks/agent/agent.py --only graphs
"""

from __future__ import annotations

from benchmarks.agent.graph_methods import EARLIEST_FINISH, cost, entries
from benchmarks.agent.section import SectionResult, Settings, every
from benchmarks.agent.set_tables import digest, numbers, set_tables
from heterps_agents.graphs.policy import GraphPolicy
from heterps_envs.graphs.problem import GraphTables
from heterps_envs.problem_sets.graphs import graphs_fingerprint
from heterps_envs.problem_sets.test_sets import DRAWN_GRAPHS, GRAPH_SETS, graph_set

QUICK_PROBLEMS = 4
NOTES = {
    "in-range": "Sizes that policies are trained on: 24-64 nodes, 3-6 devices.",
    "larger": "Larger than trained on: 96-256 nodes, 6-8 devices.",
    "real": "Shipped models on the devices of shipped clusters.",
    "published": "Graphs that other projects published.",
}


def run(settings: Settings) -> SectionResult:
    """One table for each test set."""
    policy = GraphPolicy.load(settings.graph_policy)
    most = QUICK_PROBLEMS if settings.quick else None
    names = [name for name in GRAPH_SETS if name != "published" or settings.workloads]
    sets: dict[str, list[GraphTables]] = {
        name: every(graph_set(name, settings.workloads), most) for name in names
    }
    lines = {name: entries(policy, settings.quick, name in DRAWN_GRAPHS) for name in names}
    store = settings.store(
        "graphs",
        entries={name: [e.name for e in entries] for name, entries in lines.items()},
        policy=digest(policy.weights),
        problems={name: graphs_fingerprint(cases) for name, cases in sets.items()},
    )
    tables = set_tables(
        "graphs",
        sets,
        lines,
        cost,
        store,
        settings.seed,
        NOTES,
        EARLIEST_FINISH,
    )
    return SectionResult(tables, numbers(tables), store)
