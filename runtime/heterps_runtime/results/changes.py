"""What changed in the course of a run: plans, and devices."""

from __future__ import annotations

from collections.abc import Mapping

from heterps_configs.documents.base import Document


class Replan(Document):
    """A switch to a new plan in mid-run.

    Attributes:
        step: The first step under the new plan.
        predicted_step_time_s: What the simulator said of the new plan.
        measured_step_time_s: Median under the new plan.
        seconds: From the last step under the old plan until the new one was ready.
        bytes_moved: Parameters and optimizer state that changed their rank.
    """

    step: int
    generation: int
    planner: str
    predicted_step_time_s: float
    measured_step_time_s: float
    seconds: float
    bytes_moved: int


class Recovery(Document):
    """One change of the devices, or one repair among the same ones.

    Attributes:
        generation: Of the plan that the run went on with; 0 is the first plan's.
        lost: Devices that had gone.
        joined: Devices that had come.
        decision: Which plan, and why.
        detected_s: From the fault until it was noticed; None where nobody knows when it happened.
        replanned_s: From then until the new plan was handed out.
        connected_s: From then until the ranks had met and knew which step is the last.
        state_s: From then until all state was in place.
        first_step_s: From the fault (or its notice, or the join's) until a new step was done.
        pause_s: From the last step before until the first step after.
        from_step: The first step under the new plan.
        steps_repeated: Steps that had been done, and were run again.
        bytes_by_source: What was brought to ranks that did not hold it, and from where.
    """

    generation: int
    lost: tuple[str, ...] = ()
    joined: tuple[str, ...] = ()
    decision: str = ""
    detected_s: float | None = None
    replanned_s: float
    connected_s: float
    state_s: float
    first_step_s: float
    pause_s: float
    from_step: int
    steps_repeated: int = 0
    bytes_by_source: Mapping[str, int] = {}
