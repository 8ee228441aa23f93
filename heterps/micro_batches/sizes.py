"""Sizes of micro-batches: which ones are looked at, and how good a plan is over them all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from heterps.micro_batches.outlooks import cost_of
from heterps.micro_batches.place_result import PlaceResult, TriedSize
from heterps_agents.exact.all_plans import least_of_all
from heterps_agents.exact.planner import proving_tables
from heterps_agents.exact.solve import solve
from heterps_agents.interface.planner import Budget
from heterps_agents.search.uniform import micro_batch_candidates
from heterps_configs.documents.job import least_micro_batch_size
from heterps_configs.documents.plan import Bound
from heterps_envs.closed_form.bounds import certain_share, plans_bound_s
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.problem import Problem

# Seconds that the proof may take that a size which nobody placed holds no better plan.
PROOF_S = 0.2
# And so many that no plan of a size is below a bound, where other bounds do not say it.
CHECK_S = 0.5


def open_sizes(problem: Problem) -> list[int]:
    """Sizes of micro-batches that are looked at where that is left open, the smallest first."""
    least = least_micro_batch_size(problem.job.global_batch_size)
    return [size for size in micro_batch_candidates(problem) if size >= least]


def with_size(problem: Problem, size: int) -> Problem:
    """The problem with one size of micro-batches, which is not chosen any more."""
    job = problem.job.changed(micro_batch_size=size, unequal_micro_batch_sizes=None)
    return replace(problem, job=job, strategy=problem.strategy.changed(chooses_micro_batch=False))


def nearest_to_a_plan(asked: Sequence[Problem]) -> Problem:
    """Of the sizes none of which has a plan that of which it is told why.

    The one with the least bound: what a floor is above there it is above with every size. Where
    none fits, the smallest.

    Args:
        asked: The problem with each size, the smallest first.
    """
    return min(asked, key=plans_bound_s)


def with_bound_over(
    best: PlaceResult,
    answers: Sequence[PlaceResult],
    asked: Sequence[Problem],
    tried: Sequence[TriedSize],
    budget: Budget,
) -> PlaceResult:
    """The best answer with a bound that holds for all sizes, not only for its own.

    Args:
        best: Of the answers.
        answers: Of all sizes that were placed.
        asked: The problem with each size.
        tried: All sizes; those without an answer and without a proof may still hold a better plan.
        budget: Its end ends proofs.
    """
    if best.problem.job.objective == "price":
        are_proven = all(answer.bound.status == "proven" for answer in answers)
        is_least = _closed_form_price(best) <= min(map(_closed_form_price, answers))
        if are_proven and is_least and len(answers) == len(tried):
            return best
        bound = Bound()
    else:
        known = {answer.plan.job.micro_batch_size: answer.bound.step_time_s for answer in answers}
        bounds = {each.size: known.get(each.size) or each.bound for each in tried}
        own_s = best.bound.step_time_s
        if best.bound.status == "proven" and own_s is not None:
            left_out = [p for p in asked if p.job.micro_batch_size not in known]
            _prove_above(own_s, left_out, bounds, budget)
        least_s = min(bounds.values())
        is_proven = best.bound.status == "proven" and own_s is not None and least_s >= own_s
        if not is_proven and not best.problem.strategy.is_plain:
            least_s = _least_of_all(least_s, answers, asked, budget)
        if own_s is not None and least_s >= own_s:
            return best
        closed_s = best.estimate.closed_form_step_time_s
        if not 0 < least_s < math.inf or (closed_s is not None and closed_s < least_s):
            # It fits by the simulator, and not by the rule of planners that the bound is about.
            bound = Bound()
        elif closed_s is None:
            bound = Bound(step_time_s=least_s)
        else:
            bound = Bound(step_time_s=least_s, gap=closed_s / least_s - 1, status="bounded")
    return replace(best, bound=bound, plan=best.plan.changed(bound=bound))


def _prove_above(
    step_time_s: float, problems: Sequence[Problem], bounds: dict[int, float], budget: Budget
) -> None:
    """Raises bounds to optima, as long as each turns out to be above a step time."""
    for problem in problems:
        size = problem.job.micro_batch_size
        if bounds[size] >= step_time_s:
            continue
        if budget.is_exhausted:
            return
        kernel = kernel_tables(proving_tables(problem))
        seconds = min(PROOF_S, budget.seconds_left)
        result = solve(kernel, Goal.of(problem.job), max_seconds=seconds)
        if result.status == "over budget":
            return
        bounds[size] = result.step_time_s if result.code is not None else math.inf
        if bounds[size] < step_time_s:
            return


def _least_of_all(
    least_s: float, answers: Sequence[PlaceResult], asked: Sequence[Problem], budget: Budget
) -> float:
    """A bound over the sizes, lowered to what no plan that the strategy allows is below.

    What is proven of a size, and what is known of those without an answer, is about placements that
    planners form; all other bounds of answers are about every plan.
    """
    of_all = {
        answer.plan.job.micro_batch_size
        for answer in answers
        if answer.bound.status != "proven" and answer.bound.step_time_s is not None
    }
    for problem in asked:
        if problem.job.micro_batch_size in of_all:
            continue
        own_s = plans_bound_s(problem)
        if own_s < least_s and not budget.is_exhausted:
            result = least_of_all(problem, least_s, min(CHECK_S, budget.seconds_left))
            if result.status != "over budget":
                found_s = least_s if result.code is None else result.step_time_s
                own_s = max(own_s, found_s * certain_share(problem.tables, found_s))
        least_s = min(least_s, own_s)
    return least_s


def _closed_form_price(result: PlaceResult) -> float:
    shown = result.estimate
    share = (shown.closed_form_step_time_s or shown.step_time_s) / max(shown.step_time_s, 1e-30)
    return cost_of(result) * share
