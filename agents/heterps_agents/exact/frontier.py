"""The whole cost/throughput frontier of a problem from one sweep of the exact solver.

A placement that uses given devices costs their price times its step time, so of all placements on
these devices only the fastest matters. The dynamic programme of `heterps_agents.exact.solve` has
exactly that for every state: the least step time by the devices used. Two solves set the ends, the
fastest placement and the cheapest; nothing that is slower than the one or dearer than the other is
of use.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from heterps_agents.exact.kernels import SweepLimits, sweep
from heterps_agents.exact.solve import (
    MAX_SECONDS,
    MAX_TABLE_BYTES,
    SECONDS_PER_TRANSITION,
    ExactResult,
    Status,
    WorkLimits,
    scratch,
    solve,
)
from heterps_agents.exact.space import search_space
from heterps_agents.exact.trace import trace_back
from heterps_envs.closed_form.formula import evaluate_one
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.objective import ROUNDING, Goal


class FrontierPoint(NamedTuple):
    """A placement that no other beats in both step time and cost.

    Attributes:
        code: (L,) int32, see `heterps_envs.closed_form.formula`.
        step_time_s: Its closed form.
        price_usd_per_hour: Of the devices that it uses.
    """

    code: NDArray[np.int32]
    step_time_s: float
    price_usd_per_hour: float


class FrontierResult(NamedTuple):
    """What the sweep found.

    Attributes:
        points: The fastest first; each next one costs less.
        status: `infeasible` is a proof; `over budget`: not started, or given up, without points.
    """

    points: tuple[FrontierPoint, ...]
    status: Status


def solve_frontier(
    kernel: KernelTables,
    floor_s: float = math.inf,
    max_seconds: float = MAX_SECONDS,
    max_table_bytes: float = MAX_TABLE_BYTES,
) -> FrontierResult:
    """All placements that are optimal for some price of time.

    Args:
        kernel: From `heterps_envs.closed_form.kernel_tables.kernel_tables`.
        floor_s: Longest step time that is allowed.
        max_seconds: For each of the three sweeps, see `heterps_agents.exact.solve.solve`.
        max_table_bytes: See `heterps_agents.exact.solve.WorkLimits`.
    """
    most = (max_seconds, max_table_bytes)
    fastest = _solved(kernel, Goal(floor_s=floor_s), *most)
    if fastest.code is None:
        return FrontierResult((), fastest.status)
    cheapest = _solved(kernel, Goal(is_price=True, floor_s=floor_s), *most)
    if cheapest.code is None:
        return FrontierResult((), cheapest.status)
    slowest_s = max(fastest.step_time_s, cheapest.step_time_s) * (1 + ROUNDING)
    goal = Goal(is_price=True, floor_s=min(floor_s, slowest_s))
    space = search_space(kernel, goal, goal.cost(fastest.code, kernel))
    labels, seen, reached = scratch(kernel, len(space.totals))
    limits = SweepLimits(0, float(max_seconds / SECONDS_PER_TRANSITION), np.zeros(1))
    if not sweep(kernel, space, labels, seen, reached, limits):
        return FrontierResult((), "over budget")
    step_time_s = np.where(labels.first[0] > 0, labels.behind_s[labels.first[0]], np.inf)
    kinds, least_s = step_time_s.argmin(axis=0), step_time_s.min(axis=0)
    points = []
    for state in undominated(least_s, space.price_usd_per_hour):
        code = np.zeros(kernel.num_layers, np.int32)
        found = trace_back(kernel, space, labels, int(kinds[state]), state, code)
        assert found, "every label was reached by a transition"
        used = np.zeros(kernel.num_classes, np.int64)
        seconds, price, _ = evaluate_one(code, kernel, used)
        points.append(FrontierPoint(code, float(seconds), float(price)))
    return FrontierResult(tuple(points), "optimal")


def _solved(
    kernel: KernelTables, goal: Goal, max_seconds: float, max_table_bytes: float
) -> ExactResult:
    limits = WorkLimits(table_bytes=max_table_bytes)
    return solve(kernel, goal, max_seconds=max_seconds, limits=limits)


def undominated(step_time_s: NDArray[np.float64], price: NDArray[np.float64]) -> list[int]:
    """Indices of what no other beats in step time and price times step time, the fastest first.

    Args:
        step_time_s: (N,) seconds; inf for what is none.
        price: (N,) US dollars per hour of the devices that it uses.
    """
    cost = np.full(len(price), np.inf)
    np.multiply(price, step_time_s, out=cost, where=np.isfinite(step_time_s))
    best, front = math.inf, []
    for state in np.lexsort((cost, step_time_s)):
        if cost[state] < best * (1 - ROUNDING):
            best = cost[state]
            front.append(int(state))
    return front
