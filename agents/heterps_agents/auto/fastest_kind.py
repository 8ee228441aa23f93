"""Plans on the fastest kind of device alone, where there are hundreds of devices of several kinds.

A search over all of them has little time for each kind. Where slower devices hardly help, as in
small batches of small models, it misses what the same search finds on the fastest ones.
"""

from __future__ import annotations

import contextlib

from heterps_agents.interface.planner import Budget
from heterps_agents.learned.planner import DEFAULT_POLICY, PolicyPlanner
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import InfeasibleError
from heterps_configs.library import shipped
from heterps_envs.online.fewer_devices import without_devices
from heterps_envs.problem import Problem

# With fewer devices, or of fewer kinds, the search over all of them sees these plans, too.
LEAST_DEVICES, LEAST_KINDS = 128, 3
EFFORT = "fast"


def plan_of_fastest_kind(problem: Problem, budget: Budget, seed: int) -> Plan | None:
    """The policy's plan on them; None where it has none, or the search over all is enough.

    Args:
        problem: What was asked.
        budget: Its end ends this; plans that cost as much as it knows need not be found.
        seed: Of the policy.
    """
    kinds = {device.type.name for device in problem.cluster.devices}
    is_large = len(problem.cluster.devices) >= LEAST_DEVICES and len(kinds) >= LEAST_KINDS
    if not is_large or budget.is_exhausted or DEFAULT_POLICY not in shipped("policies"):
        return None
    part = on_fastest_kind(problem)
    with contextlib.suppress(InfeasibleError):
        plan = PolicyPlanner(seed, effort=EFFORT).plan(part, budget)
        return plan.changed(bound=Bound())
    return None


def on_fastest_kind(problem: Problem) -> Problem:
    """The problem without all other devices."""
    seconds = problem.tables.compute_s.sum(axis=0)
    fastest = min(problem.class_of, key=lambda name: float(seconds[problem.class_of[name]]))
    kind = problem.device_named[fastest].type.name
    others = [name for name, each in problem.device_named.items() if each.type.name != kind]
    return without_devices(problem, others)
