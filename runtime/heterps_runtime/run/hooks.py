"""Who is called while a run goes on, and the new plan that a controller may answer with."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from heterps_configs.documents.plan import Plan
from heterps_envs.online.drift_monitor import DriftEvent
from heterps_envs.problem import Problem
from heterps_runtime.results.measurements import Measurements
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.results.result import Evaluation


@dataclass(frozen=True)
class PlanUpdate:
    """A controller's answer: go on under this plan.

    Attributes:
        plan: For the same model, cluster and job.
        problem: The problem as measurements corrected it: what orders the schedule and predicts.
        from_step: The first step that may run under the plan.
        reason: Why this one: a line for people.
    """

    plan: Plan
    problem: Problem
    from_step: int = 0
    reason: str = ""


Controller = Callable[[Measurements], PlanUpdate | None]


@dataclass(frozen=True)
class RunHooks:
    """Who is called while a run goes on.

    Attributes:
        controller: Sees every measurement, and may answer with a new plan.
        on_progress: Called after every step; in elastic runs, steps that are run again come again.
        on_message: Called with remarks: what is ignored, a save that failed, what is lost or comes.
        on_plan: In elastic runs, called with each plan that the run goes on with, and the devices
            that there are.
        on_same_plan: The same where devices have gone or come, and the plan stays.
        on_evaluation: Called with each evaluation of the training program.
        drifts: Asked at the end: what was recognised to be other than predicted, as it changed.
    """

    controller: Controller | None = None
    on_progress: Callable[[StepProgress], None] = lambda progress: None
    on_message: Callable[[str], None] = warnings.warn
    on_plan: Callable[[PlanUpdate, Sequence[str]], None] = lambda update, alive: None
    on_same_plan: Callable[[PlanUpdate, Sequence[str]], None] = lambda update, alive: None
    on_evaluation: Callable[[Evaluation], None] = lambda found: None
    drifts: Callable[[], Sequence[DriftEvent]] = lambda: ()
