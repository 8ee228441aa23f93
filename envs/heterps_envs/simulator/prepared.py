"""A plan prepared for the simulator: what its times, its memory and its bound have in common."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_envs.schedule.build import schedule_of
from heterps_envs.schedule.plan_arrays import PlanArrays, plan_arrays
from heterps_envs.simulator.messages import Messages, messages


@dataclass(frozen=True, eq=False)
class PreparedPlan:
    """One plan of a problem; every part is made once, when it is first asked for.

    Attributes:
        problem: Where the seconds and bytes come from.
        plan: What runs.
        given: Its action lists; None: those of `build_schedule`.

    Raises:
        PlanMismatchError: By all parts: the plan belongs to another model, cluster or job.
    """

    problem: Problem
    plan: Plan
    given: Schedule | None = None

    @cached_property
    def arrays(self) -> PlanArrays:
        """Costs and routes of the plan."""
        return plan_arrays(self.problem, self.plan)

    @cached_property
    def schedule(self) -> Schedule:
        """The action list of every device."""
        return self.given or schedule_of(self.problem, self.plan, self.arrays)

    @cached_property
    def messages(self) -> Messages:
        """What the action lists send and receive."""
        return messages(self.schedule, self.arrays)
