"""Sizes of micro-batches on other devices than those of the set that was placed."""

from __future__ import annotations

from dataclasses import replace

from heterps.micro_batches.place_result import PlaceResult
from heterps.micro_batches.sizes import open_sizes, with_size
from heterps_configs.documents.plan import Bound
from heterps_envs.closed_form.bounds import bound_for, least_cost, plans_bound_s
from heterps_envs.problem import Problem


def with_open_sizes(problem: Problem) -> list[Problem]:
    """The problem with each size of micro-batches that is open."""
    is_open = problem.strategy.chooses_micro_batch
    return [with_size(problem, size) for size in open_sizes(problem)] if is_open else [problem]


def as_placed(problem: Problem, result: PlaceResult) -> Problem:
    """The problem with the size of micro-batches that a plan on some of its devices has."""
    return replace(problem, job=result.problem.job, strategy=result.problem.strategy)


def bound_of_all_sizes(problem: Problem, result: PlaceResult) -> Bound:
    """How far a plan is, by the closed form, from what no plan of any open size is below.

    Args:
        problem: With the sizes that are open.
        result: Of planning on some of its devices.
    """
    own = as_placed(problem, result)
    bound = bound_for(own, result.plan)
    if bound.step_time_s is None:
        return bound
    asked = [own, *with_open_sizes(problem)]
    least_s, least = min(map(plans_bound_s, asked)), min(map(least_cost, asked))
    if bound.gap is None or least <= 0:
        return Bound(step_time_s=least_s)
    gap = (1 + bound.gap) * least_cost(own) / least - 1
    return Bound(step_time_s=least_s, gap=gap, status="bounded")
