"""Sizes of micro-batches on other devices than those of the set that was placed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from heterps.micro_batches.place_result import PlaceResult
from heterps.micro_batches.sizes import open_sizes, with_size
from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.closed_form.bounds import bound_for, least_cost, plans_bound_s
from heterps_envs.problem import Problem


def with_open_sizes(problem: Problem) -> list[Problem]:
    """The problem with each size of micro-batches that is open."""
    is_open = problem.strategy.chooses_micro_batch
    return [with_size(problem, size) for size in open_sizes(problem)] if is_open else [problem]


def on_all(asked: Sequence[Problem], result: PlaceResult) -> PlaceResult:
    """What was found on some devices as a result on all of them.

    Args:
        asked: The problem on all devices, with each size of micro-batches that is open.
        result: Of planning on some of them.
    """
    size = result.plan.job.micro_batch_size
    own = next(each for each in asked if each.job.micro_batch_size == size)
    return replace(result, problem=own, bound=_bound_of_all_sizes(asked, own, result.plan))


def _bound_of_all_sizes(asked: Sequence[Problem], own: Problem, plan: Plan) -> Bound:
    """How far a plan is, by the closed form, from what no plan of any open size is below."""
    bound = bound_for(own, plan)
    if bound.step_time_s is None:
        return bound
    least_s, least = min(map(plans_bound_s, asked)), min(map(least_cost, asked))
    if bound.gap is None or least <= 0:
        return Bound(step_time_s=least_s)
    gap = (1 + bound.gap) * least_cost(own) / least - 1
    return Bound(step_time_s=least_s, gap=gap, status="bounded")
