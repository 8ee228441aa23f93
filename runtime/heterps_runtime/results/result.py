"""What a run brought: losses, measured against predicted seconds, re-plans, recoveries."""

from __future__ import annotations

import math
import statistics
from array import array
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from heterps_configs.documents.base import Document
from heterps_configs.documents.estimate import Estimate, MemoryCurve, TimelineEvent
from heterps_configs.documents.plan import Plan
from heterps_runtime.process.memory_report import MemoryReport
from heterps_runtime.results.measurements import StageTimes
from heterps_runtime.results.phases import Phase, warm_steps
from heterps_runtime.results.step_figures import StepFigures

# Of a run directory: the whole result, for reports.
RESULT_FILE = "run-result.json"


@dataclass(frozen=True)
class StepProgress:
    """One finished step.

    Attributes:
        loss: Mean loss of the global batch.
        generation: 0 for the first plan, one more for every re-plan.
        measured: What the step took; memory as it was measured in an earlier step of the plan.
        predicted: What it should have taken.
        memory_limit_bytes: What each device of the plan has.
        unlearned: What it should have taken according to the problem that the run began with:
            drift is told against it.
    """

    step: int
    num_steps: int
    loss: float
    generation: int
    measured: StepFigures
    predicted: StepFigures
    memory_limit_bytes: Mapping[str, int]
    unlearned: StepFigures

    @property
    def step_time_s(self) -> float:
        """Measured seconds of the step."""
        return self.measured.step_time_s


class DoneSteps:
    """What is kept of every step of a run: a few numbers each, since there may be millions.

    Attributes:
        steps: Their numbers, in order.
        losses: Mean loss of each.
        step_times_s: As measured.
        generations: The plan of each.
    """

    def __init__(self) -> None:
        self.steps, self.generations = array("q"), array("q")
        self.losses, self.step_times_s = array("d"), array("d")
        self._bubbles: dict[str, array[float]] = {}

    def __len__(self) -> int:
        """How many there are."""
        return len(self.steps)

    def add(self, progress: StepProgress) -> None:
        """Takes one more step."""
        shares = progress.measured.bubble_shares
        for device in shares.keys() - self._bubbles.keys():
            self._bubbles[device] = array("d", [math.nan]) * len(self)
        for device, column in self._bubbles.items():
            column.append(shares.get(device, math.nan))
        self.steps.append(progress.step)
        self.generations.append(progress.generation)
        self.losses.append(progress.loss)
        self.step_times_s.append(progress.step_time_s)

    def take_back_from(self, step: int) -> None:
        """Forgets a step and all later ones: they come again."""
        while self.steps and self.steps[-1] >= step:
            for numbers in (self.steps, self.generations):
                numbers.pop()
            for figures in (self.losses, self.step_times_s, *self._bubbles.values()):
                figures.pop()

    def bubbles(self, device: str, indices: Iterable[int]) -> list[tuple[float, float]]:
        """Step time and bubble share of a device, in those of some steps that measured it."""
        column = self._bubbles.get(device, array("d"))
        own = [(self.step_times_s[i], column[i]) for i in indices] if column else []
        return [(seconds, share) for seconds, share in own if not math.isnan(share)]


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
        worst_overrun_s: The longest delay after a deadline.
        memory: What the device held at most, measured in the second step of the last plan; None
            for an idle device and in a run of one step.
        predicted_memory_bytes: The estimate's peak, under the last plan; None for an idle device.
        memory_limit_bytes: What plans may use of it; None for an idle device.
        stage_names: Of the last plan.
        bubble_share: Of a step (`heterps_runtime.results.step_figures.bubble_share`): median under
            the last plan, before any slowdown; None for an idle device, and under torch's engine.
        predicted_bubble_share: The same in the simulator.
        busy_s: The rest of such a step, in seconds.
    """

    device: str
    is_emulated: bool
    num_actions: int
    num_overruns: int
    worst_overrun_s: float
    optimizer_s: float
    memory: MemoryReport | None = None
    predicted_memory_bytes: int | None = None
    memory_limit_bytes: int | None = None
    stage_names: tuple[str, ...] = ()
    bubble_share: float | None = None
    predicted_bubble_share: float | None = None
    busy_s: float | None = None


class Evaluation(Document):
    """What an evaluation found.

    Attributes:
        step: Steps that were done.
        figures: Mean loss over the evaluation data (`loss`), and metrics by name.
    """

    step: int
    figures: Mapping[str, float]


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


class RunResult(Document):
    """A finished run.

    Attributes:
        predicted_step_time_s: The simulator's step time of the first plan.
        measured_step_time_s: Median under the first plan, without warm-up, before any slowdown.
        relative_error: Predicted over measured, minus 1.
        predicted_throughput_samples_per_s: Under the first plan.
        throughput_samples_per_s: As measured, under the first plan.
        predicted_bubble_share: Mean over the devices of the last plan.
        bubble_share: As measured.
        times_of: What the measured times are times of.
        first_step: Of this run; above 0 where it went on from a checkpoint. All lists begin there.
        checkpoint: The newest that was saved.
        evaluations: Of the training program's evaluation data, in order.
        generations: Which plan each step ran under.
        phases: Means of the steps under each plan; the last one is the whole run.
        max_loss_difference: Largest difference to single-process training; None when not verified.
        stages: Median seconds of each stage of the last plan.
        timeline: The actions of the last step, as measured.
        earlier_timelines: Of the steps before it, where the run was asked for them.
        memory_curves: What the devices held in the course of a step of the last plan, as measured.
        recoveries: Of an elastic run: every change of its devices, and what it took.
        final_plan: The last plan.
        final_estimate: What was predicted of it, with timeline and memory curves.
    """

    predicted_step_time_s: float
    measured_step_time_s: float
    relative_error: float
    predicted_throughput_samples_per_s: float | None = None
    throughput_samples_per_s: float | None = None
    predicted_bubble_share: float | None = None
    bubble_share: float | None = None
    times_of: Literal["emulated devices", "this host"]
    losses: tuple[float, ...]
    evaluations: tuple[Evaluation, ...] = ()
    step_times_s: tuple[float, ...]
    generations: tuple[int, ...]
    phases: tuple[Phase, ...] = ()
    max_loss_difference: float | None = None
    first_step: int = 0
    checkpoint: str | None = None
    stages: tuple[StageTimes, ...] = ()
    devices: tuple[DeviceReport, ...] = ()
    replans: tuple[Replan, ...] = ()
    timeline: tuple[TimelineEvent, ...] = ()
    earlier_timelines: tuple[tuple[TimelineEvent, ...], ...] = ()
    memory_curves: tuple[MemoryCurve, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    final_plan: Plan | None = None
    final_estimate: Estimate | None = None

    def median_step_time_s(self, first_step: int = 0, last_step: int | None = None) -> float:
        """Median over steps `first_step .. last_step` (inclusive), without warm-up steps."""
        stop = len(self.step_times_s) if last_step is None else last_step + 1
        return median_step_time_s(self.step_times_s, self.generations, range(first_step, stop))


def median_step_time_s(
    step_times_s: Sequence[float], generations: Sequence[int], steps: range
) -> float:
    """Median over some steps; warm-up steps of a plan count only where there are no others."""
    return statistics.median([step_times_s[s] for s in warm_steps(generations, steps)])
