"""Changes of an elastic run's devices: what a replanner is told, and faults made on purpose."""

from __future__ import annotations

from typing import NamedTuple, Protocol

from heterps_configs.documents.plan import Plan
from heterps_runtime.run.hooks import PlanUpdate


class MembershipChange(NamedTuple):
    """What has changed since the last plan that ran.

    Attributes:
        step: The first step that a new plan runs, as far as known: earlier after a loss of state.
        lost: Devices that have gone.
        joined: Devices that have come.
        alive: All that there are now, also those without a stage.
        plan: What ran.
    """

    step: int
    num_steps: int
    lost: tuple[str, ...]
    joined: tuple[str, ...]
    alive: tuple[str, ...]
    plan: Plan


class Replanner(Protocol):
    """Finds the plan that a run goes on with."""

    def replan(self, change: MembershipChange) -> PlanUpdate:
        """The plan on the devices that are alive; the one that runs, where none is better.

        It is called in a thread of its own, one call after the other. The answer is thrown away
        where more has changed meanwhile; `RunHooks.on_plan` and `on_same_plan` get it where the
        run goes on by it.

        Raises:
            NotEnoughDevicesError: There is none.
        """
        ...
