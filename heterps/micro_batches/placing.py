"""A plan with the size of micro-batches that is best, where sizes are open."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterps.micro_batches.carried import with_searched
from heterps.micro_batches.each_size import NO_BUDGET, TOO_DEAR, place_each_size
from heterps.micro_batches.floors import place_above_floor, sizes_of
from heterps.micro_batches.one_size import place_one_size, with_divided_state
from heterps.micro_batches.outlooks import best_of_each, cost_of, rank
from heterps.micro_batches.patient import place_patiently
from heterps.micro_batches.place_result import PlaceResult
from heterps.micro_batches.quick import with_quick
from heterps.micro_batches.sizes import with_bound_over
from heterps.micro_batches.unproven import of_unproven_sizes
from heterps_agents.auto.bounds import bound_after
from heterps_agents.interface.patient import PatientPlanner
from heterps_agents.interface.planner import Budget, Planner
from heterps_agents.interface.system import System
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem

# Of a limit in time, for a proof by the closed form if no more is left.
CLOSED_FORM_PART = 1 / 16
# Results cost so many times what the best costs at most, whose optimizer state is tried divided.
NEAR_DIVIDED = 1.02


def place_without_bound(
    problem: Problem, planner: Planner | System, budget: Budget
) -> tuple[PlaceResult, list[Problem]]:
    """As `heterps.place`, but for the bound of all plans that can be run: that takes seconds.

    Args:
        problem: With no more left open than the planner chooses.
        planner: With its effort.
        budget: What it may spend.

    Returns:
        The best plan, and the problem with each size of micro-batches that was open: what
        `with_executable` takes.

    Raises:
        InfeasibleError: See `heterps.place`.
    """

    def place(asked: Problem, own: Budget) -> tuple[PlaceResult, list[Problem]]:
        if asked.strategy.chooses_micro_batch:
            return _over_sizes(asked, planner, own)
        result = with_divided_state(_of_one_size(asked, planner, own), planner)
        return result, [asked]  # devices that planners leave out count for the bound of all plans

    return place_above_floor(problem, place, budget, planner.name)


def _of_one_size(asked: Problem, planner: Planner | System, budget: Budget) -> PlaceResult:
    """A plan where the size of micro-batches is given.

    Searches go by the closed form and by the rule of memory: even plans that the simulator chooses,
    and walks over all devices, may fit and keep a floor where nothing else does.
    """
    if not isinstance(planner, PatientPlanner) or budget.has_time_limit:
        return place_one_size(asked, planner, budget)
    try:
        answers = [place_one_size(asked, planner, budget)]
    except InfeasibleError:
        answers = with_quick([], [asked], planner, budget)
        if not answers:
            raise
    answers = with_quick(answers, [asked], planner, budget)
    return _with_spent(_with_bound_after(answers[0], min(answers, key=rank)), budget)


def _with_bound_after(first: PlaceResult, best: PlaceResult) -> PlaceResult:
    """The best result with its gap to the optimum, where the search before it knows that."""
    is_of_all = first.problem.device_named.keys() == best.problem.device_named.keys()
    if best is first or best.bound.gap is None or not is_of_all:
        return best
    bound = bound_after(best.problem, first.plan, best.plan)
    return replace(best, bound=bound, plan=best.plan.changed(bound=bound))


def _over_sizes(
    problem: Problem, planner: Planner | System, budget: Budget
) -> tuple[PlaceResult, list[Problem]]:
    """A plan for each size of micro-batches, and the best of them by the simulator.

    Raises:
        InfeasibleError: There is no plan with any size; see `heterps.place`.
    """
    asked = sizes_of(problem)
    if isinstance(planner, PatientPlanner) and planner.is_patient and budget.has_time_limit:
        tried, answers = place_patiently(asked, planner, budget)
    else:
        tried, answers = place_each_size(asked, planner, budget)
        if isinstance(planner, PatientPlanner):
            answers = with_searched(answers, asked, planner, budget)
            answers = with_quick(answers, asked, planner, budget)
    best = _with_divided_state(answers, planner, budget)
    answers = best_of_each([best, *answers, *of_unproven_sizes(best, asked, planner, budget)])
    best = answers[0]
    found = {answer.plan.job.micro_batch_size: cost_of(answer) for answer in answers}
    tried = [
        entry._replace(found=found[entry.size], why="") if entry.size in found else entry
        for entry in tried
    ]
    # Bounds are no planning: what they take is not the planner's.
    best = _with_spent(best, budget)
    best = replace(best, tried_sizes=tuple(sorted(tried, key=lambda each: each.size)))
    proof = budget.at_least(CLOSED_FORM_PART)
    return _with_given_up(with_bound_over(best, answers, asked, tried, proof)), asked


def _with_spent(result: PlaceResult, budget: Budget) -> PlaceResult:
    """The result with all that planning took until now."""
    return replace(
        result,
        evaluations=budget.evaluations_used,
        planning_s=budget.seconds_used,
        planning_cpu_s=budget.cpu_seconds_used,
    )


def _with_divided_state(
    answers: Sequence[PlaceResult], planner: Planner | System, budget: Budget
) -> PlaceResult:
    """The best result with optimizer state divided where that is faster.

    Without a limit in time it is tried of all that are near the best: a longer step may have more
    to win.
    """
    least = min(map(cost_of, answers))
    most = least if budget.has_time_limit else NEAR_DIVIDED * least
    near = [each for each in sorted(answers, key=rank) if cost_of(each) <= most]
    return min((with_divided_state(each, planner) for each in near or answers), key=rank)


def _with_given_up(result: PlaceResult) -> PlaceResult:
    """The result with a note of sizes that the planner gave up, where they may be better."""
    notes = given_up_notes(result)
    if not notes:
        return result
    shown = result.estimate.changed(notes=(*result.estimate.notes, *notes))
    return replace(result, estimate=shown)


def given_up_notes(result: PlaceResult) -> tuple[str, ...]:
    """A line for each reason for which sizes were given up that may be better."""
    if result.bound.status == "proven":
        return ()
    of_reason = {
        why: [str(each.size) for each in result.tried_sizes if each.why == why]
        for why in (TOO_DEAR, NO_BUDGET)
    }
    return tuple(
        f"micro-batches of {', '.join(sizes)} may be better: {why}"
        for why, sizes in of_reason.items()
        if sizes
    )
