"""What `auto` does with each plan that somebody found: finishes it, and keeps the better of two."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.views import fastest
from heterps_agents.plan_choices.in_flight_choice import choose_in_flight
from heterps_agents.plan_choices.interleaving import interleave
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_configs.documents.plan import Plan
from heterps_envs.options import keeps_to
from heterps_envs.problem import Problem
from heterps_envs.simulator.notes import can_run


def finished(problem: Problem, plan: Plan, budget: Budget) -> Plan:
    """With chunks and micro-batches in flight as they are best: that changes which plan is."""
    plan = choose_reduce(problem, interleave(problem, plan, budget))
    return choose_in_flight(problem, plan, budget)


@contextmanager
def part_of(budget: Budget, part: float) -> Iterator[Budget]:
    """A share of a budget, which is charged at the end."""
    own = budget.share(part)
    own.known_cost = math.inf
    try:
        yield own
    finally:
        budget.charge(own)


def better(problem: Problem, best: Plan | None, found: Plan) -> Plan | None:
    """The better of two plans by the simulator, the first of equal ones; one that may be used."""
    if not keeps_to(found, problem.strategy) or not can_run(problem, found):
        return best
    found = choose_reduce(problem, found)
    return found if best is None else fastest(problem, [best, found])
