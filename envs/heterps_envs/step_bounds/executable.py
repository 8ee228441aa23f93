"""A lower bound of the simulated step of every plan that can be run: `least_executable_s`."""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np

from heterps_configs.documents.plan import Bound, Plan
from heterps_envs.options import keeps_to
from heterps_envs.problem import Problem
from heterps_envs.step_bounds.covering import least_earned
from heterps_envs.step_bounds.needs import Needs, needs_of
from heterps_envs.step_bounds.shares import most_shares

# The bound is found to this share of itself.
PRECISION = 1e-3
# Of the search for worths, for each number of seconds that is tried.
ITERATIONS = 100
# Nothing is planned for longer steps.
MOST_S = 1e12
# A simulated step is a sum with rounding errors.
ROUNDING = 1e-9


def executable_bound(problems: Iterable[Problem], plan: Plan, step_time_s: float) -> Bound:
    """How far a plan is, as simulated, from what no plan can be below: proven where it reaches it.

    Nothing is said where the price counts, and of plans that the bound is not about.

    Args:
        problems: What was asked, with each size of micro-batches that a plan might have.
        plan: The answer.
        step_time_s: Of the plan, simulated.
    """
    asked = list(problems)
    is_alone = len(plan.device_groups) == len(plan.stages)
    is_asked = any(each.job.objective != "price" for each in asked)
    if not is_asked or not is_alone or not all(keeps_to(plan, each.strategy) for each in asked):
        return Bound()
    least_s = step_time_s * (1 - ROUNDING)
    for problem in asked:
        least_s = min(least_s, least_executable_s(problem, least_s))
    if least_s <= 0:
        return Bound()
    gap = step_time_s / least_s - 1
    if gap <= 2 * ROUNDING:
        return Bound(step_time_s=step_time_s, gap=0.0, status="proven")
    return Bound(step_time_s=least_s, gap=gap, status="bounded")


def least_executable_s(problem: Problem, most_s: float = math.inf) -> float:
    """Seconds below which no plan that the strategy allows is simulated; inf where none fits.

    It holds of plans in which a device has one stage, whatever their cuts, replicas, routes,
    micro-batches and numbers in flight; under `interleaved` devices have several, and the bound is
    0.

    Args:
        problem: What is asked, with its size of micro-batches.
        most_s: Where the bound is no less, this is returned: that is quickly seen.

    Raises:
        HeterpsError: A strategy allows nothing: no layer is split at its degrees.
    """
    if problem.job.schedule == "interleaved":
        return 0.0
    known = problem.derived.get(least_executable_s)
    needs = known if isinstance(known, Needs) else needs_of(problem)
    problem.derived[least_executable_s] = needs
    return _least(needs, most_s)


def _least(needs: Needs, most_s: float) -> float:
    """The largest number of seconds that is proven too few."""
    num_layers, num_groups = len(needs.in_s), len(needs.class_of)
    shares = np.zeros((num_groups, num_layers, num_layers))
    worth, cover = np.full(num_layers, 1 / num_layers), np.zeros(num_layers)

    def is_too_few(step_s: float) -> bool:
        most_shares(needs, step_s, shares)
        return least_earned(needs, shares, worth, ITERATIONS, cover) < 1

    if math.isfinite(most_s) and is_too_few(most_s):
        return most_s
    work_s = needs.total * (needs.forward_s[-1] + needs.backward_s[-1]).min()
    low, high = 0.0, min(most_s, max(float(work_s) / float(needs.num_devices.sum()), 1e-12))
    while high < most_s and is_too_few(high):
        low, high = high, min(most_s, 2 * high)
        if high > MOST_S:
            return math.inf
    while high - low > PRECISION * high:
        middle = (low + high) / 2 if low == 0 else math.sqrt(low * high)
        if is_too_few(middle):
            low = middle
        else:
            high = middle
    return low
