"""Plans that a method has ranked: the first one that fits."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate


def first_that_fits(
    problem: Problem, plans: Sequence[Callable[[], Plan]], budget: Budget
) -> tuple[int, Plan]:
    """The first plan that fits by our simulator, and its place; the first of all where none does.

    Args:
        problem: What they answer.
        plans: Each makes one, the best first; at least one.
        budget: Counts the simulated ones; where it is spent, the rest is not looked at.
    """
    first = plans[0]()
    for place, make in enumerate(plans):
        if place and budget.is_exhausted:
            break
        budget.spend()
        plan = make() if place else first
        if estimate(problem, plan).feasible:
            return place, plan
    return 0, first
