"""The result of a run, from what its parent knows and what its ranks left."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from heterps_configs.documents.estimate import MemoryCurve
from heterps_configs.documents.run_events import RunEvent
from heterps_envs.problem import Problem
from heterps_runtime.execution.measured_memory import measured_curve
from heterps_runtime.process.memory_report import MemoryReport
from heterps_runtime.results.changes import Replan
from heterps_runtime.results.generation import Generation
from heterps_runtime.results.measurements import StageTimes
from heterps_runtime.results.phases import WARM_UP_STEPS, Phase, phases_of, warm_steps
from heterps_runtime.results.progress import DoneSteps
from heterps_runtime.results.result import DeviceReport, Evaluation, RunResult, median_step_time_s
from heterps_runtime.results.step_figures import measured_timeline
from heterps_runtime.specification.run import RunSpecification


@dataclass(frozen=True)
class RunRecord:
    """What the parent of a run knows when it is over.

    Attributes:
        specification: Of the first plan.
        generations: All plans, in order.
        done: The steps that count.
        switches: What rank 0 printed of each switch to another plan.
        checkpoint: The last one that was saved, if any.
        drifts: Steps since which something was recognised to be other than predicted.
    """

    problem: Problem
    specification: RunSpecification
    generations: Sequence[Generation]
    done: DoneSteps
    switches: Sequence[Mapping[str, Any]]
    evaluations: Sequence[Evaluation]
    checkpoint: str | None
    drifts: Sequence[int] = ()

    def steps(self, generation: int) -> range:
        """All steps of one plan."""
        generations = self.done.generations
        first = generations.index(generation)
        return range(first, len(generations) - generations[::-1].index(generation))

    def steady_steps(self, generation: int) -> range:
        """Steps of one plan, before the first slowdown or drift where there is such a step.

        What seems to drift from the first step on that is no warm-up step is a wrong prediction.
        """
        # Slowdowns count from the beginning of training, the lists from the first step of the run.
        steps, offset = self.steps(generation), self.specification.first_step
        slowed = [(entry.step or 0) - offset for entry in self.specification.slowdowns]
        found = [at for at in slowed if steps.start < at < steps.stop]
        known = [at - offset for at in self.drifts]
        found += [at for at in known if steps.start + WARM_UP_STEPS < at < steps.stop]
        return range(steps.start, min(found, default=steps.stop))

    def begins_slowed(self, generation: int) -> bool:
        """Whether a slowdown from before a plan's first step is one that its prediction ignores."""
        start = self.steps(generation).start + self.specification.first_step
        slowed = [each for each in self.specification.slowdowns if (each.step or 0) <= start]
        own = self.generations[generation] if slowed else None
        return own is not None and any(
            {*(each.link or (each.subject,))} <= {*own.plan.devices}
            and not self._is_known(each, own.problem)
            for each in slowed
        )

    def _is_known(self, slowdown: RunEvent, problem: Problem) -> bool:
        """Whether a run has corrected what it believes of a device; of a link it never does."""
        if slowdown.link is not None:
            return False
        name = slowdown.subject
        return problem.device_named[name].type != self.problem.device_named[name].type

    def median_step_time_s(self, generation: int) -> float:
        """Measured, over the steady steps of a plan."""
        done, steps = self.done, self.steady_steps(generation)
        return median_step_time_s(done.step_times_s, done.generations, steps)


def collect(record: RunRecord, ranks: Sequence[dict[str, Any]]) -> RunResult:
    """Puts the result together.

    Args:
        record: What the parent knows.
        ranks: What each rank left.
    """
    done, specification = record.done, record.specification
    # Of an elastic run, the first plan may have run no step that counts.
    number = done.generations[0]
    predicted_s = record.generations[number].estimate.step_time_s
    last = record.generations[done.generations[-1]]
    measured_s = record.median_step_time_s(number)
    devices = tuple(_device_report(record, rank) for rank in ranks)
    batch = record.problem.job.global_batch_size
    return RunResult(
        predicted_step_time_s=predicted_s,
        measured_step_time_s=measured_s,
        relative_error=predicted_s / measured_s - 1,
        predicted_throughput_samples_per_s=batch / predicted_s,
        throughput_samples_per_s=batch / measured_s,
        predicted_bubble_share=_mean(entry.predicted_bubble_share for entry in devices),
        bubble_share=_mean(entry.bubble_share for entry in devices),
        times_of="emulated devices" if specification.emulation else "this host",
        first_step=specification.first_step,
        checkpoint=record.checkpoint,
        losses=tuple(done.losses),
        evaluations=tuple(record.evaluations),
        step_times_s=tuple(done.step_times_s),
        generations=tuple(done.generations),
        phases=_phases(record),
        stages=tuple(StageTimes(**entry) for rank in ranks for entry in rank["stages"]),
        devices=devices,
        replans=tuple(_replan(record, line) for line in record.switches),
        timeline=measured_timeline(ranks, [rank["trace"] for rank in ranks]),
        earlier_timelines=tuple(
            measured_timeline(ranks, records)
            for records in zip(*(rank["earlier_traces"] for rank in ranks), strict=True)
        ),
        memory_curves=_memory_curves(ranks),
        final_plan=last.plan,
        final_estimate=last.estimate_with_memory(),
    )


def _phases(record: RunRecord) -> tuple[Phase, ...]:
    plans = {
        number: (each.plan.planner, each.estimate.step_time_s)
        for number, each in enumerate(record.generations)
    }
    done = record.done
    drifted = {
        step
        for number in set(done.generations)
        for step in (
            record.steps(number)
            if record.begins_slowed(number)
            else range(record.steady_steps(number).stop, record.steps(number).stop)
        )
    }
    return phases_of(
        done.step_times_s, done.generations, plans, record.specification.first_step, drifted
    )


def _replan(record: RunRecord, line: Mapping[str, Any]) -> Replan:
    number = int(line["switched_to"])
    generation = record.generations[number]
    return Replan(
        step=line["step"],
        generation=number,
        planner=generation.plan.planner,
        predicted_step_time_s=generation.estimate.step_time_s,
        measured_step_time_s=record.median_step_time_s(number),
        seconds=line["seconds"],
        bytes_moved=line["bytes_moved"],
    )


def _device_report(record: RunRecord, rank: Mapping[str, Any]) -> DeviceReport:
    # The last plan that was switched to; a later one may have been written in vain.
    number = record.done.generations[-1]
    last, device = record.generations[number], rank["device"]
    steps = warm_steps(record.done.generations, record.steady_steps(number))
    pairs = record.done.bubbles(device, steps)
    bubbles = [share for _, share in pairs]
    busy_s = [seconds * (1 - share) for seconds, share in pairs]
    return DeviceReport(
        is_emulated=record.problem.device_named[device].type.emulation is not None,
        stage_names=tuple(s.name for s in last.plan.stages if device in s.devices),
        bubble_share=statistics.median(bubbles) if bubbles else None,
        busy_s=statistics.median(busy_s) if busy_s else None,
        predicted_bubble_share=last.figures.bubble_shares.get(device),
        predicted_memory_bytes=last.estimate.memory_bytes.get(device),
        memory_limit_bytes=last.estimate.memory_limit_bytes.get(device),
        **{name: rank[name] for name in DeviceReport.model_fields if name in rank},
    )


def _mean(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _memory_curves(ranks: Sequence[dict[str, Any]]) -> tuple[MemoryCurve, ...]:
    return tuple(
        measured_curve(
            MemoryReport(**rank["memory"]),
            rank["memory_actions"],
            [(start_s, end_s) for *_, start_s, end_s in rank["trace"]],
        )
        for rank in ranks
        if rank["memory_actions"]
    )
