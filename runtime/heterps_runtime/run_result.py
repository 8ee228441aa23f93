"""What a run brought: losses, measured against predicted seconds, re-plans."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from heterps_configs.document import Document
from heterps_configs.estimate import TimelineEvent
from heterps_runtime.measurements import StageTimes
from heterps_runtime.memory_report import MemoryReport

# The first steps under a plan set up connections and warm caches; no median counts them.
WARM_UP_STEPS = 2


@dataclass(frozen=True)
class StepProgress:
    """One finished step.

    Attributes:
        loss: Mean loss of the global batch.
        generation: 0 for the first plan, one more for every re-plan.
    """

    step: int
    num_steps: int
    loss: float
    step_time_s: float
    generation: int


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


class DeviceReport(Document):
    """How one rank did.

    Attributes:
        num_actions: Emulated actions under the last plan, after the warm-up.
        num_overruns: Those that the host could not finish in the emulated device's time.
        worst_overrun_s: The longest delay behind a deadline.
        memory: What the device held at most, measured in the second step of the last plan; None
            for an idle device and in a run of one step.
        predicted_memory_bytes: The estimate's peak, under the last plan; None for an idle device.
    """

    device: str
    is_emulated: bool
    num_actions: int
    num_overruns: int
    worst_overrun_s: float
    optimizer_s: float
    memory: MemoryReport | None = None
    predicted_memory_bytes: int | None = None


class RunResult(Document):
    """A finished run.

    Attributes:
        predicted_step_time_s: The simulator's step time of the first plan.
        measured_step_time_s: Median under the first plan, without warm-up, before any slowdown.
        relative_error: Predicted over measured, minus 1.
        times_of: What the measured times are times of.
        first_step: Of this run; above 0 where it went on from a checkpoint. All lists begin there.
        checkpoint: The newest that was saved.
        generations: Which plan each step ran under.
        max_loss_difference: Largest difference to single-process training; None when not verified.
        stages: Median seconds of each stage of the last plan.
        timeline: The actions of the last step, as measured.
    """

    predicted_step_time_s: float
    measured_step_time_s: float
    relative_error: float
    times_of: Literal["emulated devices", "this host"]
    losses: tuple[float, ...]
    step_times_s: tuple[float, ...]
    generations: tuple[int, ...]
    max_loss_difference: float | None = None
    first_step: int = 0
    checkpoint: str | None = None
    stages: tuple[StageTimes, ...] = ()
    devices: tuple[DeviceReport, ...] = ()
    replans: tuple[Replan, ...] = ()
    timeline: tuple[TimelineEvent, ...] = ()

    def median_step_time_s(self, first_step: int = 0, last_step: int | None = None) -> float:
        """Median over steps `first_step .. last_step` (inclusive), without warm-up steps."""
        stop = len(self.step_times_s) if last_step is None else last_step + 1
        return median_step_time_s(self.step_times_s, self.generations, range(first_step, stop))


def median_step_time_s(
    step_times_s: Sequence[float], generations: Sequence[int], steps: range
) -> float:
    """Median over some steps; warm-up steps of a plan count only where there are no others."""
    first_of = {generation: generations.index(generation) for generation in set(generations)}
    warm = [s for s in steps if s - first_of[generations[s]] >= WARM_UP_STEPS]
    return statistics.median([step_times_s[s] for s in warm or steps])
