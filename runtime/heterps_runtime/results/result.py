"""What a run brought: losses, measured against predicted seconds, re-plans, recoveries."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal

from pydantic import AllowInfNan, BeforeValidator, PlainSerializer, model_validator
from pydantic_core import PydanticCustomError

from heterps_configs.documents.base import Document
from heterps_configs.documents.estimate import Estimate, MemoryCurve, TimelineEvent
from heterps_configs.documents.numbers import NotNegative, Ratio, Seconds, SignedSeconds
from heterps_configs.documents.plan import Plan
from heterps_runtime.process.memory_report import MemoryReport
from heterps_runtime.results.changes import Recovery, Replan
from heterps_runtime.results.measurements import StageTimes
from heterps_runtime.results.phases import Phase, warm_steps

# Of a run directory: the whole result, for reports.
RESULT_FILE = "run-result.json"
# What a training computes may be no number where it diverges: null in JSON, which knows none such.
Computed = Annotated[
    float,
    AllowInfNan(True),
    PlainSerializer(lambda value: value if math.isfinite(value) else None, when_used="json"),
]
ComputedOrNull = Annotated[
    Computed, BeforeValidator(lambda value: math.nan if value is None else value)
]


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
            the last plan, before any slowdown or drift; None for an idle device, and under torch's
            engine.
        predicted_bubble_share: The same in the simulator.
        busy_s: The rest of such a step, in seconds.
    """

    device: str
    is_emulated: bool
    num_actions: NotNegative
    num_overruns: NotNegative
    worst_overrun_s: SignedSeconds
    optimizer_s: Seconds
    memory: MemoryReport | None = None
    predicted_memory_bytes: NotNegative | None = None
    memory_limit_bytes: NotNegative | None = None
    stage_names: tuple[str, ...] = ()
    bubble_share: Ratio | None = None
    predicted_bubble_share: Ratio | None = None
    busy_s: Seconds | None = None


class Evaluation(Document):
    """What an evaluation found.

    Attributes:
        step: Steps that were done.
        figures: Mean loss over the evaluation data (`loss`), and metrics by name.
    """

    step: NotNegative
    figures: Mapping[str, ComputedOrNull]


class RunResult(Document):
    """A finished run.

    Attributes:
        predicted_step_time_s: The simulator's step time of the first plan.
        measured_step_time_s: Median under the first plan, without warm-up, before any slowdown or
            drift that was recognised.
        relative_error: Predicted over measured, minus 1.
        predicted_throughput_samples_per_s: Under the first plan.
        throughput_samples_per_s: As measured, under the first plan.
        predicted_bubble_share: Mean over the devices of the last plan.
        bubble_share: As measured.
        times_of: What the measured times are times of.
        first_step: Of this run; above 0 where it went on from a checkpoint. All lists begin there.
        checkpoint: The newest that was saved.
        checkpoint_error: Why the last one could not be.
        evaluations: Of the training program's evaluation data, in order.
        generations: Which plan each step ran under.
        phases: Means of the steps under each plan; the last one is the whole run.
        is_verified: Whether the same was trained in one process, too.
        max_loss_difference: Largest difference to that; None when not verified; infinite where a
            loss is no number, which files and JSON have as null.
        verification_error: Why the training in one process that was asked for failed.
        stages: Median seconds of each stage of the last plan.
        timeline: The actions of the last step, as measured.
        earlier_timelines: Of the steps before it, where the run was asked for them.
        memory_curves: What the devices held in the course of a step of the last plan, as measured.
        recoveries: Of an elastic run: every change of its devices, and what it took.
        final_plan: The last plan.
        final_estimate: What was predicted of it, with timeline and memory curves.
    """

    predicted_step_time_s: Seconds
    measured_step_time_s: Seconds
    relative_error: Ratio
    predicted_throughput_samples_per_s: Ratio | None = None
    throughput_samples_per_s: Ratio | None = None
    predicted_bubble_share: Ratio | None = None
    bubble_share: Ratio | None = None
    times_of: Literal["emulated devices", "this host"]
    losses: tuple[ComputedOrNull, ...]
    evaluations: tuple[Evaluation, ...] = ()
    step_times_s: tuple[Seconds, ...]
    generations: tuple[NotNegative, ...]
    phases: tuple[Phase, ...] = ()
    is_verified: bool = False
    max_loss_difference: Computed | None = None
    verification_error: str | None = None
    first_step: NotNegative = 0
    checkpoint: str | None = None
    checkpoint_error: str | None = None
    stages: tuple[StageTimes, ...] = ()
    devices: tuple[DeviceReport, ...] = ()
    replans: tuple[Replan, ...] = ()
    timeline: tuple[TimelineEvent, ...] = ()
    earlier_timelines: tuple[tuple[TimelineEvent, ...], ...] = ()
    memory_curves: tuple[MemoryCurve, ...] = ()
    recoveries: tuple[Recovery, ...] = ()
    final_plan: Plan | None = None
    final_estimate: Estimate | None = None

    @model_validator(mode="after")
    def _is_consistent(self) -> RunResult:
        for name in ("losses", "generations"):
            count = len(getattr(self, name))
            if count != len(self.step_times_s):
                raise PydanticCustomError(
                    "unequal_lengths",
                    "{name}: must have as many entries as step_times_s, {wanted}, got {count}",
                    {"name": name, "wanted": len(self.step_times_s), "count": count},
                )
        return self

    @property
    def has_comparable_times(self) -> bool:
        """Whether what was measured are times of the devices that the prediction is about."""
        return self.times_of == "emulated devices" or not any(
            entry.is_emulated for entry in self.devices
        )

    def median_step_time_s(self, first_step: int = 0, last_step: int | None = None) -> float:
        """Median over steps `first_step .. last_step` (inclusive), without warm-up steps."""
        stop = len(self.step_times_s) if last_step is None else last_step + 1
        return median_step_time_s(self.step_times_s, self.generations, range(first_step, stop))


class VerificationInterrupt(KeyboardInterrupt):
    """An interrupt during the training in one process: the run itself is done.

    Attributes:
        result: Of the run; it is in the run directory, too.
        cause: The interrupt.
    """

    def __init__(self, result: RunResult, cause: KeyboardInterrupt) -> None:
        super().__init__(*cause.args)
        self.result, self.cause = result, cause


def median_step_time_s(
    step_times_s: Sequence[float], generations: Sequence[int], steps: range
) -> float:
    """Median over some steps; warm-up steps of a plan count only where there are no others."""
    return statistics.median([step_times_s[s] for s in warm_steps(generations, steps)])
