"""A planner that uses all of a limit in time, and how the time is divided."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from heterps_agents.interface.planner import Budget, Planner
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem

# Of a limit in time, for what is found in tenths of a second; of what is left of that, for each way
# to find it; of what is left then, for first plans. The rest is for better ones.
QUICK_PART, WAY_PART = 1 / 4, 1 / 2
FIRST_PART, FIRST_PART_OF_MANY = 3 / 4, 1 / 2
# With so many devices a search takes long, a walk from a first plan wins more, and the policy's own
# part is a tenth of what the simulator takes for the choice.
MANY_DEVICES = 128


def has_many_devices(problem: Problem) -> bool:
    """Whether walks win most, on many devices without options: these take a search longer."""
    return len(problem.cluster.devices) >= MANY_DEVICES and problem.strategy.is_plain


def first_part(problem: Problem) -> float:
    """Of the time that is left after quick plans, for first plans."""
    return FIRST_PART_OF_MANY if has_many_devices(problem) else FIRST_PART


@runtime_checkable
class PatientPlanner(Planner, Protocol):
    """A planner that uses all of a limit in time, if it is patient.

    Attributes:
        is_patient: Whether it does.
    """

    is_patient: bool

    def hurried(self, problem: Problem) -> Planner:
        """Who answers first, in little time."""
        ...

    def quick_ways(self, problem: Problem) -> tuple[str, ...]:
        """Names of what is asked first; each answers in tenths of a second."""
        ...

    def quick_plan(self, problem: Problem, budget: Budget, way: str) -> Plan | None:
        """What one of them answers; None where it has no plan that may be used."""
        ...

    def quick_plans(
        self, problems: Sequence[Problem], budget: Budget, way: str
    ) -> dict[int, Plan] | None:
        """The same of several problems at once; None where the way looks at one at a time."""
        ...

    def nearby(self, problem: Problem, plan: Plan, budget: Budget) -> Plan:
        """A plan, or a better one near it that is found in a tenth of a second."""
        ...

    def improved(self, problem: Problem, plan: Plan, budget: Budget) -> Plan:
        """A plan, or a better one, found with all the time of a budget."""
        ...

    def of_stage_sets(
        self, problem: Problem, like: Plan, below_s: float, budget: Budget
    ) -> Plan | None:
        """A plan of fewer seconds, of stages that the bound does not rule out; None: no such plan.

        Args:
            problem: What was asked, with another size of micro-batches than some known plan.
            like: That plan.
            below_s: The seconds.
            budget: Its end ends this.
        """
        ...
