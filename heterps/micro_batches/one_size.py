"""A plan for the size of micro-batches that a job names, and how good it is."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from dataclasses import replace

from heterps.micro_batches.place_result import PlaceResult
from heterps_agents.finishing.finds import best_of_finds
from heterps_agents.interface.patient import PatientPlanner, is_search
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.system import OwnCost, System
from heterps_agents.learned.efforts import effort_of
from heterps_agents.plan_choices.divided_state import choose_divided
from heterps_agents.plan_choices.in_flight_choice import choose_in_flight
from heterps_agents.plan_choices.interleaving import interleave
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_configs.arguments import check_type
from heterps_configs.documents.plan import Bound, Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.bounds import bound_for
from heterps_envs.closed_form.placement import check_plan
from heterps_envs.closed_form.usable import on_usable_devices, where_layers_fit
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from heterps_envs.step_bounds.executable import executable_bound

# Of a limit in time, what a search may take: the simulator has the rest to choose among its finds.
SEARCH_PART = 1 / 2
# And what is left of it for a proof.
PROOF_PART = 1 / 8
# A plan, or a better one for the same problem.
Improve = Callable[[Problem, Plan, Budget], Plan]


def place_one_size(problem: Problem, planner: Planner | System, budget: Budget) -> PlaceResult:
    """Finds a plan and says how good it is, but for the bound of all plans (`with_executable`).

    Args:
        problem: Model profile, cluster and job, and ways to carry out stages that the planner may
            choose from.
        planner: With its effort and its seed.
        budget: What it may spend.

    Raises:
        InfeasibleError: No plan keeps memory and the throughput floor.
    """
    if problem.strategy.is_plain:
        asks_simulator = getattr(planner, "asks_simulator", False)
        problem = where_layers_fit(problem) if asks_simulator else on_usable_devices(problem)
    own_cost: OwnCost | None = None
    if isinstance(planner, System):
        plan, own_cost = planner.answer(problem, budget)
    else:
        plan = _searched(problem, planner, budget)
    return _finished(problem, planner, plan, budget, own_cost)


def _searched(problem: Problem, planner: Planner, budget: Budget) -> Plan:
    """What a planner answers, or what the simulator makes of all that it found on its way."""
    if not getattr(planner, "hands_over_finds", False):
        return _answered(problem, planner, budget)
    own = budget
    if budget.has_time_limit:
        own = budget.share(getattr(planner, "search_part", None) or SEARCH_PART)
        own.known_cost = budget.known_cost
    plan = _answered(problem, planner, own)
    if own is not budget:
        budget.charge(own)
    most_stages = effort_of(planner).simulated_stages
    return best_of_finds(problem, plan, budget, most_stages, walks=True)


def _answered(problem: Problem, planner: Planner, budget: Budget) -> Plan:
    """The plan of a planner, which may be anybody's.

    Raises:
        HeterpsError: It has none, or its plan is for something else.
    """
    plan = planner.plan(problem, budget)
    check_type(f"what {planner.name} returned", plan, Plan, "a heterps Plan")
    check_plan(problem, plan)
    return plan


def finished_result(
    problem: Problem, plan: Plan, planner: PatientPlanner, budget: Budget
) -> PlaceResult | None:
    """A plan with all that is chosen for it alone; None where it does not fit then.

    Args:
        problem: With a size of micro-batches.
        plan: One that was found in tenths of a second.
        planner: Who is asked.
        budget: What it may spend.
    """
    with contextlib.suppress(InfeasibleError):
        return _finished(problem, planner, plan.changed(planner=planner.name), budget)
    return None


def improve_one_size(
    result: PlaceResult, planner: PatientPlanner, improve: Improve, budget: Budget
) -> PlaceResult:
    """The result of planning, or a better one.

    Args:
        result: What is known.
        planner: Who found it.
        improve: What the planner does with its plan.
        budget: What it may spend more.
    """
    plan = improve(result.problem, result.plan, budget)
    if plan is result.plan:
        return result
    try:
        return _finished(result.problem, planner, plan, budget)
    except InfeasibleError:  # finished, it takes more memory than there is
        return result


def _finished(
    problem: Problem,
    planner: Planner | System,
    plan: Plan,
    budget: Budget,
    own_cost: OwnCost | None = None,
) -> PlaceResult:
    """With all that is chosen for a plan alone, and how good it is."""
    plan = interleave(problem, plan, budget)
    plan = choose_reduce(problem, plan)
    if not isinstance(planner, System):
        plan = choose_in_flight(problem, plan, budget)
    planning_s, planning_cpu_s = budget.seconds_used, budget.cpu_seconds_used
    shown = estimate(problem, plan, with_interval=True)
    if not shown.feasible:
        raise InfeasibleError(f"planner {planner.name}: " + "; ".join(shown.reasons))
    if own_cost is not None and own_cost.note:
        shown = shown.changed(notes=(own_cost.note, *shown.notes))
    bound = plan.bound
    # A bound of plans without options is none of those with them.
    if bound.status == "unknown" and problem.strategy.is_plain:
        bound = bound_for(problem, plan)
    plan = plan.changed(predicted_step_time_s=shown.step_time_s, bound=bound)
    return PlaceResult(
        problem, planner.name, plan, shown, bound,
        budget.evaluations_used, planning_s, planning_cpu_s, own_cost,
    )  # fmt: skip


def with_divided_state(result: PlaceResult, planner: Planner | System) -> PlaceResult:
    """The result with each layer's optimizer state divided where that is faster.

    Comes last: no placement describes such a plan, so that searches cannot go on from it, and its
    closed form says nothing.

    Args:
        result: Of planning.
        planner: Who was asked. Only of searches the simulator chooses the plan: what the exact
            solver, a rule or a paper's system answers stays as it is.
    """
    if not is_search(planner) or result.problem.job.objective == "price":
        return result
    plan = choose_divided(result.problem, result.plan)
    if plan is result.plan:
        return result
    bound = Bound(step_time_s=result.bound.step_time_s)
    shown = estimate(result.problem, plan, with_interval=True)
    plan = plan.changed(predicted_step_time_s=shown.step_time_s, bound=bound)
    return replace(result, plan=plan, estimate=shown, bound=bound)


def search_budget(budget: Budget) -> Budget:
    """What may be spent until a plan is found: all evaluations, and all time but the proof's."""
    return budget.sooner(1 - PROOF_PART)


def proof_budget(budget: Budget) -> Budget:
    """What proofs may take when a plan is found: what time is left, and a part of it at least."""
    return budget.at_least(PROOF_PART)


def with_executable(
    result: PlaceResult, asked: Iterable[Problem], budget: Budget | None = None
) -> PlaceResult:
    """The result with the bound of all plans that can be run.

    Args:
        result: Of planning.
        asked: The problem, with each size of micro-batches that was open.
        budget: When its time is over, a lower bound is found soon; None: it never is.
    """
    step_time_s = result.estimate.step_time_s
    is_over = None if budget is None else lambda: budget.is_exhausted
    bound = executable_bound(asked, result.plan, step_time_s, is_over)
    return replace(result, executable=bound, plan=result.plan.changed(executable_bound=bound))
