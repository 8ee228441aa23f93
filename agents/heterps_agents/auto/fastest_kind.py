"""The policy's plan on the fastest kind of device alone, with all options that are open."""

from __future__ import annotations

import contextlib

from heterps_agents.interface.planner import Budget
from heterps_agents.learned.fastest_kind import is_worth_asking, on_fastest_kind
from heterps_agents.learned.planner import DEFAULT_POLICY, PolicyPlanner
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import InfeasibleError
from heterps_configs.library import shipped
from heterps_envs.problem import Problem

EFFORT = "fast"


def plan_of_fastest_kind(problem: Problem, budget: Budget, seed: int) -> Plan | None:
    """The policy's plan on them; None where it has none, or the search over all is enough.

    Args:
        problem: What was asked.
        budget: Its end ends this; plans that cost as much as it knows need not be found.
        seed: Of the policy.
    """
    if (
        not is_worth_asking(problem)
        or budget.is_exhausted
        or DEFAULT_POLICY not in shipped("policies")
    ):
        return None
    part = on_fastest_kind(problem)
    with contextlib.suppress(InfeasibleError):
        plan = PolicyPlanner(seed, effort=EFFORT).plan(part, budget)
        return plan.changed(bound=Bound())
    return None
