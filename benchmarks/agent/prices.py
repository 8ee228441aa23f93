"""Chains with the objective price under a throughput floor: every method on frozen test sets.

python benchmarks/agent/agent.py --only prices
"""

from __future__ import annotations

from benchmarks.agent.chain_methods import Chain, cheapest_entries, cost
from benchmarks.agent.section import SectionResult, Settings, every
from benchmarks.agent.set_tables import digest, numbers, set_tables
from heterps_agents.exact.solve import solve
from heterps_agents.learned.policy import Policy
from heterps_agents.training.evaluation import CHEAPEST_FLOOR
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.cost_tables import CostTables
from heterps_envs.problem_sets.chains import fingerprint
from heterps_envs.problem_sets.test_sets import chain_set

SETS, PROBLEMS, QUICK_PROBLEMS = ("in-range", "more-types"), 60, 4
NOTE = (
    f"Problems of `{{}}` with the objective price: US dollars a step, no step longer than "
    f"{CHEAPEST_FLOOR:g} times the shortest. `policy` is the shipped one for prices; the "
    "policy for short steps is asked for placements on subsets of the classes."
)


def run(settings: Settings) -> SectionResult:
    """One table for each test set."""
    policy, other = Policy.load(settings.price_policy), Policy.load(settings.policy)
    most = QUICK_PROBLEMS if settings.quick else PROBLEMS
    sets = {name: cheapest_problems(every(chain_set(name), most)) for name in SETS}
    lines = cheapest_entries(policy, other, settings.quick)
    store = settings.store(
        "prices",
        entries=[line.name for line in lines],
        policies=[digest(policy.weights), digest(other.weights)],
        problems={name: fingerprint([c.tables for c in cases]) for name, cases in sets.items()},
    )
    notes = {name: NOTE.format(name) for name in SETS}
    wanted = dict.fromkeys(SETS, lines)
    tables = set_tables("prices", sets, wanted, cost, store, settings.seed, notes)
    return SectionResult(tables, numbers(tables), store)


def cheapest_problems(tables: list[CostTables]) -> list[Chain]:
    """The problems with the objective price, under a floor near the shortest step."""
    cheapest = []
    for entry in tables:
        kernel = kernel_tables(entry)
        optimum = solve(kernel)
        if optimum.status == "optimal":
            goal = Goal(is_price=True, floor_s=CHEAPEST_FLOOR * optimum.step_time_s)
            cheapest.append(Chain(entry, kernel, goal))
    return cheapest
