"""A lower bound of the simulated step of every plan that can be run: `least_executable_s`."""

from __future__ import annotations

import math

import numpy as np

from heterps_envs.problem import Problem
from heterps_envs.step_bounds.covering import least_earned
from heterps_envs.step_bounds.needs import Needs, needs_of
from heterps_envs.step_bounds.shares import most_shares

# The bound is found to this share of itself.
PRECISION = 1e-3
# Of the search for worths, for each number of seconds that is tried.
ITERATIONS = 200
# Nothing is planned for longer steps.
MOST_S = 1e12


def least_executable_s(problem: Problem) -> float:
    """Seconds below which no plan that the strategy allows is simulated; inf where none fits.

    It holds of plans in which a device has one stage, whatever their cuts, replicas, routes,
    micro-batches and numbers in flight; under `interleaved` devices have several, and the bound is
    0. It is found once for each problem.

    Raises:
        HeterpsError: A strategy allows nothing: no layer is split at its degrees.
    """
    known = problem.derived.get(least_executable_s)
    if not isinstance(known, float):
        is_known = problem.job.schedule != "interleaved"
        known = _least(needs_of(problem)) if is_known else 0.0
        problem.derived[least_executable_s] = known
    return known


def _least(needs: Needs) -> float:
    """The largest number of seconds that is proven too few."""
    num_layers, num_options = len(needs.in_s), len(needs.class_of)
    shares = np.zeros((num_options, num_layers, num_layers))
    worth, cover = np.full(num_layers, 1 / num_layers), np.zeros(num_layers)

    def is_too_few(step_s: float) -> bool:
        most_shares(needs, step_s, shares)
        return least_earned(needs, shares, worth, ITERATIONS, cover) < 1

    work_s = needs.total * (needs.forward_s[-1] + needs.backward_s[-1]).min()
    low, high = 0.0, max(float(work_s) / float(needs.count.sum()), 1e-12)
    while is_too_few(high):
        low, high = high, 2 * high
        if high > MOST_S:
            return math.inf
    while high - low > PRECISION * high:
        middle = (low + high) / 2 if low == 0 else math.sqrt(low * high)
        if is_too_few(middle):
            low = middle
        else:
            high = middle
    return low
