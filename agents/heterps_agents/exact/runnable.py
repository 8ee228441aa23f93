"""The best placement that can be run, where the optimum of the closed form cannot be.

Planners hold limits against the closed form and a linear rule of memory; of links they know those
between stages. As simulated an optimum may miss what they leave out: a link for sums of parameters
that its stages share, bytes of gradient sums, seconds that a throughput floor does not leave. So a
limit that is missed is tightened by as much, in each way that there is, and solved again, the
cheapest first. That is no proof: what a tighter limit rules out as well may have been better.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from heterps_agents.exact.solve import MAX_SECONDS, ExactResult, solve
from heterps_agents.interface.planner import Budget
from heterps_agents.plan_choices.in_flight_choice import choose_in_flight
from heterps_agents.plan_choices.interleaving import interleave
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.arrays import Code
from heterps_envs.closed_form.kernel_tables import KernelTables
from heterps_envs.closed_form.objective import Goal
from heterps_envs.problem import Problem
from heterps_envs.simulator.missing_links import unlinked_pairs
from heterps_envs.simulator.simulate import estimate, feasible_step_time_s, is_feasible

# Placements that are looked at; of a limit that is missed by less, this part is taken away.
MOST_SOLVES, LEAST_PART = 24, 0.01


class Limits(NamedTuple):
    """What placements have to keep.

    Attributes:
        kernel: Cost tables, with devices and their memory.
        goal: With the longest step time.
    """

    kernel: KernelTables
    goal: Goal

    @property
    def key(self) -> bytes:
        """What tightening changes."""
        kernel, goal = self
        floor = np.array([goal.floor_s, goal.is_price])
        return kernel.device_count.tobytes() + kernel.memory_bytes.tobytes() + floor.tobytes()


def best_runnable(
    problem: Problem, limits: Limits, code: Code, plan_of: Callable[[Code], Plan], budget: Budget
) -> Plan:
    """The plan of an optimum, or the cheapest one that is found which can be run.

    Args:
        problem: What was asked.
        limits: Those of the optimum.
        code: The optimum.
        plan_of: The plan of a code, with its step time; an error where it finds no devices.
        budget: What may be spent; the transitions of each solve are counted.

    Raises:
        InfeasibleError: None that was looked at can be run; with the reasons of the first.
        HeterpsError: The optimum finds no devices.
    """
    optimum = plan_of(code)
    if _can_be_run(problem, optimum, budget):
        return optimum
    kernel, goal = limits
    waiting, looked_at = [(0.0, 0, optimum, code, limits)], set[bytes]()
    while waiting:
        _, number, plan, code, limits = heappop(waiting)
        if number > 0 and _can_be_run(problem, plan, budget):
            return plan
        for tighter in _tightened(problem, plan, limits, code):
            key = tighter.key
            if key in looked_at or len(looked_at) == MOST_SOLVES or budget.is_exhausted:
                continue
            looked_at.add(key)
            result = _solved(tighter, budget)
            if result.code is None:
                continue
            with suppress(HeterpsError):  # it finds no devices
                entry = len(looked_at), plan_of(result.code), result.code, tighter
                heappush(waiting, (goal.cost(result.code, kernel), *entry))
    reasons = "; ".join(estimate(problem, optimum).reasons)
    raise InfeasibleError(
        f"exact: its optimum cannot be run ({reasons}), nor any of the {len(looked_at)} next "
        "placements that it looked at; choose another planner, such as auto"
    )


def _can_be_run(problem: Problem, plan: Plan, budget: Budget) -> bool:
    """Whether a plan keeps all limits as simulated, if need be with what is chosen for it later."""
    if is_feasible(problem, plan):
        return True
    if unlinked_pairs(problem, plan):
        return False
    plan = choose_reduce(problem, interleave(problem, plan, budget))
    plan = choose_in_flight(problem, plan, budget)
    return math.isfinite(feasible_step_time_s(problem, plan))


def _solved(limits: Limits, budget: Budget) -> ExactResult:
    seconds = min(MAX_SECONDS, budget.seconds_left)
    result = solve(limits.kernel, limits.goal, max_seconds=seconds)
    budget.spend_beside(result.transitions)
    return result


def _tightened(problem: Problem, plan: Plan, limits: Limits, code: Code) -> list[Limits]:
    """The limits that rule a plan out, each of them in one of the ways that there are."""
    kernel, goal = limits
    pairs = unlinked_pairs(problem, plan)
    if pairs:
        return [_with_fewer(problem, plan, limits, name) for name in next(iter(pairs))]
    shown = estimate(problem, plan)
    memory = kernel.memory_bytes.copy()
    for name, need in shown.memory_bytes.items():
        limit = shown.memory_limit_bytes[name]
        if need > limit:
            own = kernel.class_of_option == problem.class_of[name]
            memory[own] -= max(need - limit, LEAST_PART * limit)
    floor = goal.floor_s
    if shown.step_time_s > floor:
        closed_s = Goal().cost(code, kernel)
        floor = min(floor, closed_s) * min(floor / shown.step_time_s, 1 - LEAST_PART)
    kernel = kernel._replace(memory_bytes=memory)
    tighter = [Limits(kernel, goal._replace(floor_s=floor))]
    if floor < goal.floor_s and goal.is_price:  # the quickest keeps it, if any does
        tighter.append(Limits(kernel, goal._replace(is_price=False)))
    return tighter


def _with_fewer(problem: Problem, plan: Plan, limits: Limits, name: str) -> Limits:
    """With fewer devices of a device's class than the plan uses."""
    kind = problem.class_of[name]
    counts = limits.kernel.device_count.copy()
    used = sum(problem.class_of[other] == kind for other in plan.devices)
    counts[kind] = used - 1
    return limits._replace(kernel=limits.kernel._replace(device_count=counts))
