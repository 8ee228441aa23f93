"""What a planner is: one method that answers a problem with a plan, within a budget."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Hashable
from typing import Protocol

from heterps_agents.interface.finds import Find, Finds
from heterps_configs.arguments import check_number, check_whole
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.code_time import code_time
from heterps_envs.problem import Problem

# What messages say is allowed.
A_BUDGET = "a heterps.Budget(evaluations, seconds, cpu_seconds), or None for no limit"


def _wall_s() -> float:
    return time.perf_counter() - code_time().wall_s


def _cpu_s() -> float:
    return time.process_time() - code_time().cpu_s


def _check_times(**limits: float | None) -> None:
    expected = "a finite number above 0, or None: no limit"
    for name, limit in limits.items():
        if limit is None:
            continue
        check_number(name, limit, expected)
        if not 0 < limit <= sys.float_info.max:
            shown = limit if limit <= sys.float_info.max else math.inf
            raise HeterpsError(f"{name} {shown:g}: expected a finite number above 0")


def _checked_evaluations(limit: float | None) -> int | None:
    """A whole number, which may have been written as 1e4."""
    if isinstance(limit, float) and limit.is_integer():
        limit = int(limit)
    if limit is None:
        return None
    check_whole("evaluations", limit, "a whole number from 1 on, or None for no limit")
    return int(limit)


class Budget:
    """How much a planner may spend, and how much it has spent.

    Seconds in which kernels are loaded or compiled count as none.

    Args:
        evaluations: Placements whose cost it may compute; None for no limit.
        seconds: Wall-clock seconds from now; None for no limit.
        cpu_seconds: Processor seconds of this process from now, those of all its threads together;
            None for no limit. On a machine that others use too, this is the fair measure.

    Attributes:
        known_cost: Of a plan that is there already, in what the job minimises: a planner may leave
            out what comes nowhere near it.
    """

    def __init__(
        self,
        evaluations: int | None = None,
        seconds: float | None = None,
        cpu_seconds: float | None = None,
    ) -> None:
        _check_times(seconds=seconds, cpu_seconds=cpu_seconds)
        evaluations = _checked_evaluations(evaluations)
        if evaluations is not None and evaluations < 1:
            raise HeterpsError(f"evaluations {evaluations}: expected 1 or more")
        self.evaluations, self.seconds, self.cpu_seconds = evaluations, seconds, cpu_seconds
        self.evaluations_used, self._beside, self.known_cost = 0, 0, math.inf
        self._started, self._cpu_started = _wall_s(), _cpu_s()
        self._whole: Budget | None = None
        self._finds = Finds()

    def part(self, evaluations: int, seconds: float = math.inf) -> Budget:
        """A budget of its own, of no more than what is left of this one.

        Args:
            evaluations: That it may spend at most; who spends them charges this one.
            seconds: Of either kind.
        """
        left = self.evaluations_left
        wall_s, cpu_s = min(seconds, self.seconds_left), min(seconds, self.cpu_seconds_left)
        own = Budget(
            max(1, evaluations if left is None else min(evaluations, left)),
            None if math.isinf(wall_s) else max(wall_s, 1e-9),
            None if math.isinf(cpu_s) else max(cpu_s, 1e-9),
        )
        return own._of(self)

    def share(self, part: float) -> Budget:
        """A budget of its own, of a part (0 to 1) of what is left of this one."""
        return self.apart(part)._of(self)

    def apart(self, part: float) -> Budget:
        """The same where what is found is of another problem: this one does not find it."""
        left = self.evaluations_left
        return self._sooner(None if left is None else int(part * left), part)

    def sooner(self, part: float) -> Budget:
        """A budget of its own, of all evaluations and a part (0 to 1) of the seconds left."""
        return self._sooner(self.evaluations_left, part)._of(self)

    def _sooner(self, evaluations: int | None, part: float) -> Budget:
        wall_s = None if self.seconds is None else self.seconds - self.seconds_used
        cpu_s = None if self.cpu_seconds is None else self.cpu_seconds - self.cpu_seconds_used
        return Budget(
            None if evaluations is None else max(1, evaluations),
            None if wall_s is None else max(part * wall_s, 1e-9),
            None if cpu_s is None else max(part * cpu_s, 1e-9),
        )

    def at_least(self, part: float) -> Budget:
        """Seconds alone, all that are left: no fewer than a part (0 to 1) of the limit.

        For what comes when a plan is found: how good it is should be said in any case.
        """
        wall_s, cpu_s = self.seconds, self.cpu_seconds
        return Budget(
            None,
            None if wall_s is None else max(wall_s - self.seconds_used, part * wall_s),
            None if cpu_s is None else max(cpu_s - self.cpu_seconds_used, part * cpu_s),
        )

    def _of(self, whole: Budget) -> Budget:
        """Itself as a part of another one: what it finds, that one finds, on its own clock."""
        self._whole, self._finds = whole, whole._finds
        return self

    def spend(self, evaluations: int = 1) -> None:
        """Counts evaluated placements."""
        self.evaluations_used += evaluations

    def spend_beside(self, evaluations: int) -> None:
        """Counts what is no evaluated placement, as transitions of a proof, beside the limit."""
        self.evaluations_used += evaluations
        self._beside += evaluations
        if self.evaluations is not None:
            self.evaluations += evaluations

    def charge(self, part: Budget) -> None:
        """Counts what a share of this budget has spent, and what it counted beside its limit."""
        self.spend(part.evaluations_used - part._beside)
        self.spend_beside(part._beside)

    def found(
        self, cost: float, plan: Callable[[], Plan] | None = None, view: Hashable = None
    ) -> None:
        """Notes a placement that was found just now, if it is the best so far.

        It changes nothing of what may be spent: `finds` is what curves are drawn from.

        Args:
            cost: By what the planner minimises.
            plan: Makes its plan, later.
            view: Costs of unlike views of a problem are not compared.
        """
        whole, evaluations = self, self.evaluations_used
        while whole._whole is not None:
            whole = whole._whole
            evaluations += whole.evaluations_used
        self._finds.add(Find(whole.cpu_seconds_used, evaluations, cost, plan, view))

    @property
    def finds(self) -> tuple[Find, ...]:
        """What was found, by this budget, its parts and what it is a part of, the first first."""
        return tuple(self._finds.all)

    @property
    def seconds_used(self) -> float:
        """Wall-clock seconds since the budget was made."""
        return _wall_s() - self._started

    @property
    def cpu_seconds_used(self) -> float:
        """Processor seconds of this process since the budget was made."""
        return _cpu_s() - self._cpu_started

    @property
    def seconds_left(self) -> float:
        """Seconds that one busy thread may still take; inf for no limit of either kind."""
        wall_s = math.inf if self.seconds is None else max(0.0, self.seconds - self.seconds_used)
        return min(wall_s, self.cpu_seconds_left)

    @property
    def cpu_seconds_left(self) -> float:
        """Processor seconds that may still be used; inf for no limit."""
        if self.cpu_seconds is None:
            return math.inf
        return max(0.0, self.cpu_seconds - self.cpu_seconds_used)

    @property
    def evaluations_left(self) -> int | None:
        """Evaluations that may still be spent; None for no limit."""
        return (
            None if self.evaluations is None else max(0, self.evaluations - self.evaluations_used)
        )

    @property
    def has_time_limit(self) -> bool:
        """Whether seconds of either kind are limited."""
        return self.seconds is not None or self.cpu_seconds is not None

    @property
    def is_limited(self) -> bool:
        """Whether anything is limited, evaluations or seconds."""
        return self.evaluations is not None or self.has_time_limit

    @property
    def time_share(self) -> float:
        """Share of the seconds that is used, 0 to 1, by the limit that ends first; else 0."""
        used = [0.0]
        if self.seconds is not None:
            used.append(self.seconds_used / self.seconds)
        if self.cpu_seconds is not None:
            used.append(self.cpu_seconds_used / self.cpu_seconds)
        return min(1.0, max(used))

    @property
    def is_exhausted(self) -> bool:
        """Nothing is left: the planner returns the best plan it has."""
        return self.evaluations_left == 0 or self.time_share >= 1.0


class Planner(Protocol):
    """Answers a problem with a plan; `registry` knows the implementations."""

    name: str

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan found.

        Raises:
            InfeasibleError: No plan was found that keeps memory and the throughput floor.
        """
        ...
