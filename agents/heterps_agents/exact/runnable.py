"""The best placement that can be run, where the optimum of the closed form cannot be.

Planners hold limits against the closed form and a linear rule of memory; of links they know those
between stages. As simulated an optimum may miss what they leave out: a link for sums of parameters
that its stages share, bytes of gradient sums, seconds that a throughput floor does not leave. So a
limit that is missed is tightened by as much, in each way that there is, and solved again, the
cheapest first; where nothing keeps that, by less. That is no proof: what a tighter limit rules out
as well may have been better.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from heterps_agents.exact.solve import MAX_SECONDS, solve
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
# Where nothing keeps a limit of memory that was tightened by all that was missed, less is tried.
BISECTIONS = 6


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

    def eased(self, other: Limits, part: float) -> Limits:
        """With memory between their own (part 0) and that of others (part 1)."""
        memory = (1 - part) * self.kernel.memory_bytes + part * other.kernel.memory_bytes
        return self._replace(kernel=self.kernel._replace(memory_bytes=memory))


def best_runnable(
    problem: Problem,
    limits: Limits,
    code: Code,
    plan_of: Callable[[Code], Plan],
    budget: Budget,
    most_solves: float = math.inf,
) -> Plan:
    """The plan of an optimum, or the cheapest one that is found which can be run.

    Args:
        problem: What was asked.
        limits: Those of the optimum.
        code: The optimum.
        plan_of: The plan of a code, with its step time; an error where it finds no devices.
        budget: Its seconds; the transitions of each solve are counted, and no evaluations bind.
        most_solves: Placements that are looked at, `MOST_SOLVES` at most.

    Raises:
        InfeasibleError: None that was looked at can be run; with the reasons of the first.
        HeterpsError: The optimum finds no devices.
    """
    optimum = plan_of(code)
    if _can_be_run(problem, optimum, budget):
        return optimum
    kernel, goal = limits
    solves = _Solves(min(most_solves, MOST_SOLVES), budget)
    waiting = [(0.0, 0, optimum, code, limits)]
    while waiting:
        _, number, plan, code, limits = heappop(waiting)
        if number > 0 and _can_be_run(problem, plan, budget):
            return plan
        for tighter in _tightened(problem, plan, limits, code):
            found = solves.under(tighter, limits, code)
            if found is None:
                continue
            with suppress(HeterpsError):  # it finds no devices
                entry = solves.count, plan_of(found[0]), *found
                heappush(waiting, (goal.cost(found[0], kernel), *entry))
    reasons = "; ".join(estimate(problem, optimum).reasons)
    raise InfeasibleError(
        f"exact: its optimum cannot be run ({reasons}), nor any of the {solves.count} next "
        "placements that it looked at; choose another planner, such as auto"
    )


class _Solves:
    """Optima under limits, each of them sought once, and a number of them at most."""

    def __init__(self, most: float, budget: Budget) -> None:
        self._most, self._budget, self._looked_at = most, budget, set[bytes]()

    @property
    def count(self) -> int:
        """Limits that were looked at."""
        return len(self._looked_at)

    def under(self, tight: Limits, loose: Limits, code: Code) -> tuple[Code, Limits] | None:
        """The optimum under tight limits; where nothing keeps them, under some between.

        Args:
            tight: That rule out a placement.
            loose: That it keeps.
            code: Of the placement.

        Returns:
            With its limits; None where there is no other.
        """
        if tight.key in self._looked_at:
            return None
        found, low, high = self._optimum(tight), 0.0, 1.0
        if found is not None:
            return found, tight
        is_of_memory = tight.eased(loose, 1).key != tight.key
        for _ in range(BISECTIONS if is_of_memory else 0):
            part = (low + high) / 2
            limits = tight.eased(loose, part)
            found = self._optimum(limits)
            if found is not None and not np.array_equal(found, code):
                return found, limits
            low, high = (part, high) if found is None else (low, part)
        return None

    def _optimum(self, limits: Limits) -> Code | None:
        budget, key = self._budget, limits.key
        if key in self._looked_at or self.count >= self._most or budget.time_share >= 1.0:
            return None
        self._looked_at.add(key)
        seconds = min(MAX_SECONDS, budget.seconds_left)
        result = solve(limits.kernel, limits.goal, max_seconds=seconds)
        budget.spend_beside(result.transitions)
        return result.code


def _can_be_run(problem: Problem, plan: Plan, budget: Budget) -> bool:
    """Whether a plan keeps all limits as simulated, if need be with what is chosen for it later."""
    if is_feasible(problem, plan):
        return True
    if unlinked_pairs(problem, plan):
        return False
    plan = choose_reduce(problem, interleave(problem, plan, budget))
    plan = choose_in_flight(problem, plan, budget)
    return math.isfinite(feasible_step_time_s(problem, plan))


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
