"""One problem, looked at in several ways, and the plan that the simulator likes best.

Where equal nodes share device classes, no table says whether a link inside a class is one inside a
node (`heterps_envs.problem.Problem.views`). So a planner answers every view, each with a part of
what is left of its budget, and the simulator, which knows every link, chooses.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from heterps_agents.interface.planner import Budget
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.bounds import bound_for
from heterps_envs.problem import Problem
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import (
    minimised_of_plan,
    prepared_is_feasible,
    prepared_step_time_s,
)

# The first views know the links best, and have most classes.
PART = 2 / 3


def over_views(problem: Problem, budget: Budget, answer: Callable[[Problem, Budget], Plan]) -> Plan:
    """The best of a planner's plans for all views of a problem, with a bound for them all.

    Args:
        problem: What was asked.
        budget: Evaluations and seconds of all views together.
        answer: The planner's plan for one view; raises `InfeasibleError` where it has none.

    Raises:
        InfeasibleError: There is none for any view; the reason is that of the first.
    """
    views = problem.views
    if len(views) == 1:
        return answer(problem, budget)
    plans, reasons = list[Plan](), list[InfeasibleError]()
    for index, view in enumerate(views):
        if budget.is_exhausted and (plans or reasons):
            break
        own = budget.share(PART if index + 1 < len(views) else 1.0)
        own.known_cost = budget.known_cost
        try:
            plans.append(answer(view, own))
        except InfeasibleError as error:
            reasons.append(error)
        budget.charge(own)
    if not plans:
        raise reasons[0]
    best = fastest(problem, plans)
    return best.changed(bound=bound_for(problem, best))


def fastest(problem: Problem, plans: Iterable[Plan]) -> Plan:
    """The plan that costs least by the simulator, of equal ones the first; fitting ones first.

    One plan alone is not simulated, and memory is looked at until a plan fits.
    """
    found = list(plans)
    if len(found) == 1:
        return found[0]
    timed = [_timed(problem, plan) for plan in found]
    costs = [_cost(problem, each.plan) for each in timed]
    in_order = sorted(range(len(found)), key=costs.__getitem__)
    fitting = (number for number in in_order if prepared_is_feasible(timed[number]))
    return found[next(fitting, in_order[0])]


def _timed(problem: Problem, plan: Plan) -> PreparedPlan:
    prepared = PreparedPlan(problem, plan)
    return prepared.timed(prepared_step_time_s(prepared))


def _cost(problem: Problem, plan: Plan) -> float:
    step_time_s = plan.predicted_step_time_s
    assert step_time_s is not None, "it was simulated"
    return minimised_of_plan(problem, plan, step_time_s)
