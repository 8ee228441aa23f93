"""What a planner is: one method that answers a problem with a plan, within a budget."""

from __future__ import annotations

import math
import time
from typing import Protocol

from heterps_configs.errors import HeterpsError
from heterps_configs.plan import Plan
from heterps_envs.problem import Problem


class Budget:
    """How much a planner may spend, and how much it has spent.

    Args:
        evaluations: Placements whose cost it may compute; None for no limit.
        seconds: Wall-clock seconds from now; None for no limit.
    """

    def __init__(self, evaluations: int | None = None, seconds: float | None = None) -> None:
        if (evaluations is not None and evaluations < 1) or (seconds is not None and seconds <= 0):
            raise HeterpsError("a budget needs at least 1 evaluation and more than 0 seconds")
        self.evaluations, self.seconds = evaluations, seconds
        self.evaluations_used = 0
        self._started = time.perf_counter()

    def spend(self, evaluations: int = 1) -> None:
        """Counts evaluated placements."""
        self.evaluations_used += evaluations

    @property
    def seconds_used(self) -> float:
        """Seconds since the budget was made."""
        return time.perf_counter() - self._started

    @property
    def seconds_left(self) -> float:
        """Seconds that may still pass; inf for no limit."""
        return math.inf if self.seconds is None else max(0.0, self.seconds - self.seconds_used)

    @property
    def evaluations_left(self) -> int | None:
        """Evaluations that may still be spent; None for no limit."""
        return (
            None if self.evaluations is None else max(0, self.evaluations - self.evaluations_used)
        )

    @property
    def is_exhausted(self) -> bool:
        """Nothing is left: the planner returns the best plan it has."""
        out_of_time = self.seconds is not None and self.seconds_used >= self.seconds
        return out_of_time or self.evaluations_left == 0


class Planner(Protocol):
    """Answers a problem with a plan; `heterps_agents.registry` knows the implementations."""

    name: str

    def plan(self, problem: Problem, budget: Budget) -> Plan:
        """The best plan found.

        Raises:
            InfeasibleError: No plan was found that keeps memory and the throughput floor.
        """
        ...
