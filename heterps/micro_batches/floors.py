"""Plans above a throughput floor, which planners look at by the closed form alone.

The best plans, as simulated, are quicker than the closed form says: more micro-batches in flight,
pipelines side by side. So a floor that they keep must not rule them out before they are found.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

from heterps.micro_batches.place_result import PlaceResult
from heterps.micro_batches.sizes import open_sizes, with_size
from heterps_agents.interface.planner import Budget
from heterps_configs.errors import InfeasibleError, TooDearError
from heterps_envs.closed_form.bounds import bound_for, plans_bound_s
from heterps_envs.closed_form.infeasible import explain_infeasible
from heterps_envs.problem import Problem

# Of a limit, for the quickest plan where none was found for the least price above a floor.
QUICKEST_PART = 1 / 4

Place = Callable[[Problem, Budget], tuple[PlaceResult, list[Problem]]]


def sizes_of(problem: Problem) -> list[Problem]:
    """The problem with each size of micro-batches that is open."""
    if not problem.strategy.chooses_micro_batch:
        return [problem]
    return [with_size(problem, size) for size in open_sizes(problem)]


def place_above_floor(
    problem: Problem, place: Place, budget: Budget, name: str
) -> tuple[PlaceResult, list[Problem]]:
    """What is found without regard to the floor, where that keeps it.

    For throughput that is the best plan; for the price it is one, where no other was found.

    Args:
        problem: With or without a floor.
        place: Answers it, and says with which sizes of micro-batches it was asked.
        budget: What may be spent.
        name: Of the planner.

    Raises:
        InfeasibleError: No plan that was found keeps memory and the floor.
    """
    floor, batch = problem.job.min_throughput_samples_per_s, problem.job.global_batch_size
    if floor is None:
        return place(problem, budget)
    is_within_reach = any(plans_bound_s(each) <= batch / floor for each in sizes_of(problem))
    if is_within_reach and problem.job.objective == "throughput":
        return _quickest(problem, place, budget, name)
    try:
        return place(problem, budget)  # where nothing reaches it, this says why
    except InfeasibleError:
        if not is_within_reach:
            raise
        own = budget.at_least(QUICKEST_PART)
        try:
            with suppress(InfeasibleError, TooDearError):
                return _quickest(problem, place, own, name)
        finally:
            budget.charge(own)
        raise


def _quickest(
    problem: Problem, place: Place, budget: Budget, name: str
) -> tuple[PlaceResult, list[Problem]]:
    """The quickest plan that is found, if it keeps the floor."""
    job, floor = problem.job, problem.job.min_throughput_samples_per_s
    own = {"objective": job.objective, "min_throughput_samples_per_s": floor}
    free = job.changed(objective="throughput", min_throughput_samples_per_s=None)
    found, _ = place(replace(problem, job=free), budget)
    asked = replace(found.problem, job=found.problem.job.changed(**own))
    if floor is not None and found.estimate.throughput_samples_per_s < floor:
        raise InfeasibleError(f"{name}: {explain_infeasible(asked)}")
    plan = found.plan.changed(job=found.plan.job.changed(**own))
    found = replace(found, problem=asked, plan=plan)
    if job.objective == "price":  # what is known of sizes and bounds is about seconds
        bound = bound_for(asked, plan)
        found = replace(found, plan=plan.changed(bound=bound), bound=bound, tried_sizes=())
    return found, sizes_of(problem)
