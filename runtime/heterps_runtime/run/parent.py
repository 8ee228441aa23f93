"""What the parent of a run knows while it goes on, and what it makes of it in the end."""

from __future__ import annotations

import json
import statistics
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_configs.documents.estimate import Estimate, MemoryCurve
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.yaml_files import write_text
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.action_times import action_times
from heterps_envs.simulator.memory_curves import memory_curves
from heterps_envs.simulator.memory_timeline import memory_timeline
from heterps_envs.simulator.prepared import PreparedPlan
from heterps_envs.simulator.simulate import simulate
from heterps_runtime.execution.measured_memory import measured_curve
from heterps_runtime.process.memory_report import MemoryReport
from heterps_runtime.run.link_times import Taken, measured_seconds, predicted_seconds, routes_of
from heterps_runtime.run.measurements import Measurements, StageTimes, newest_measurements
from heterps_runtime.run.phases import phases_of, warm_steps
from heterps_runtime.run.result import (
    RESULT_FILE,
    DeviceReport,
    DoneSteps,
    Evaluation,
    Replan,
    RunResult,
    StepProgress,
    median_step_time_s,
)
from heterps_runtime.run.step_figures import (
    StepFigures,
    measured_timeline,
    step_figures,
    timeline_rows,
)
from heterps_runtime.run.verify import REFERENCE_FILE, max_difference
from heterps_runtime.specification.build import check_runnable, replanned
from heterps_runtime.specification.groups import actions_of_members
from heterps_runtime.specification.run import RunSpecification, next_plan_path


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
        on_evaluation: Called with each evaluation of the training program.
    """

    controller: Controller | None = None
    on_progress: Callable[[StepProgress], None] = lambda progress: None
    on_message: Callable[[str], None] = warnings.warn
    on_plan: Callable[[PlanUpdate, Sequence[str]], None] = lambda update, alive: None
    on_evaluation: Callable[[Evaluation], None] = lambda found: None


@dataclass(frozen=True)
class Generation:
    """A plan of the run, and what was predicted of it.

    Attributes:
        problem: Which the prediction rests on.
        schedule: The plan's action lists.
        estimate: With its timeline.
        figures: Of a step, as predicted.
    """

    problem: Problem
    plan: Plan
    schedule: Schedule
    estimate: Estimate
    figures: StepFigures

    @classmethod
    def of(cls, problem: Problem, plan: Plan, schedule: Schedule) -> Generation:
        """Predicts a plan."""
        estimate = simulate(problem, plan, schedule)
        figures = step_figures(
            plan,
            estimate.step_time_s,
            timeline_rows(plan, estimate.timeline),
            estimate.memory_bytes,
            predicted_seconds(
                problem, plan, routes_of(plan, actions_of_members(plan, schedule.actions))
            ),
        )
        return cls(problem, plan, schedule, estimate, figures)

    def estimate_with_memory(self) -> Estimate:
        """With the memory curve of every device."""
        prepared = PreparedPlan(self.problem, self.plan, self.schedule)
        curves = memory_curves(memory_timeline(prepared), action_times(prepared))
        return self.estimate.changed(memory_curves=curves)


class RunState:
    """Takes what rank 0 prints and what the ranks leave.

    Args:
        problem: Of the run.
        specification: Of its first plan.
        directory: Run directory.
        hooks: Who is told.

    Attributes:
        problem, directory, hooks: The same.
        done: Of all steps so far.
    """

    def __init__(
        self,
        problem: Problem,
        specification: RunSpecification,
        directory: Path,
        hooks: RunHooks,
    ) -> None:
        self.problem, self.directory, self.hooks = problem, directory, hooks
        self._first = self._newest = specification
        self._checkpoint: str | None = None
        self.done = DoneSteps()
        self._switches: list[dict[str, Any]] = []
        self._generations: list[Generation] = []
        self._unlearned: list[StepFigures] = []
        self._memory_bytes: dict[str, int] = {}
        self._seen_step = -1
        self._evaluations: list[Evaluation] = []

    def predict(self, problem: Problem, plan: Plan, schedule: Schedule) -> None:
        """Remembers the plan of the next generation, and what is to be expected of it."""
        self._generations.append(Generation.of(problem, plan, schedule))
        of_first = self._generations[-1]
        if problem is not self.problem:
            of_first = Generation.of(self.problem, plan, schedule)
        self._unlearned.append(of_first.figures)

    def on_line(self, line: dict[str, Any]) -> None:
        """Takes what rank 0 printed."""
        if "switched_to" in line:
            self._switches.append(line)
            self._memory_bytes = {}
        elif "memory_bytes" in line:
            self._memory_bytes = line["memory_bytes"]
        elif "step_time_s" in line:
            self._take_step(self._progress(line))
        elif "evaluation" in line:
            found = Evaluation(**line["evaluation"])
            # In elastic runs, steps come again.
            before = [known for known in self._evaluations if known.step < found.step]
            self._evaluations = [*before, found]
            self.hooks.on_evaluation(found)
        elif "checkpoint" in line:
            self._checkpoint = line["checkpoint"]
        elif "message" in line:
            self.hooks.on_message(line["message"])

    def _take_step(self, progress: StepProgress) -> None:
        self.done.add(progress)
        self.hooks.on_progress(progress)

    def on_poll(self) -> None:
        """Shows the controller the newest measurements of the newest plan."""
        if self.hooks.controller is None:
            return
        measurements = newest_measurements(self.directory, self._seen_step)
        if measurements is None:
            return
        self._seen_step = measurements.step
        if measurements.generation == self._newest.generation:
            update = self.hooks.controller(measurements)
            if update is not None:
                self.write_update(update)

    def write_update(self, update: PlanUpdate) -> None:
        """Hands the workers a new plan."""
        check_runnable(self.problem, update.plan)
        schedule = build_schedule(update.problem, update.plan)
        self._newest = replanned(
            self._newest, self.problem, update.plan, schedule, update.from_step
        )
        self.predict(update.problem, update.plan, schedule)
        path = next_plan_path(self.directory, self._newest.generation)
        self._newest.to_json_file(path)

    def finished(self, verify: bool) -> RunResult:
        """The result, which stays in the run directory, too."""
        found = self.result(verify)
        write_text(self.directory / RESULT_FILE, found.model_dump_json())
        return found

    def result(self, verify: bool) -> RunResult:
        """Collects what the workers left."""
        ranks = [
            json.loads((self.directory / f"result-{rank}.json").read_text())
            for rank in range(len(self._newest.devices))
        ]
        done, losses = self.done, tuple(self.done.losses)
        # Of an elastic run, the first plan may have run no step that counts.
        number = done.generations[0]
        first, last = self._generations[number], self._generations[done.generations[-1]]
        measured_s = self._median_s(number)
        devices = tuple(self._device_report(rank) for rank in ranks)
        batch = self.problem.job.global_batch_size
        return RunResult(
            predicted_step_time_s=first.estimate.step_time_s,
            measured_step_time_s=measured_s,
            relative_error=first.estimate.step_time_s / measured_s - 1,
            predicted_throughput_samples_per_s=batch / first.estimate.step_time_s,
            throughput_samples_per_s=batch / measured_s,
            predicted_bubble_share=_mean(entry.predicted_bubble_share for entry in devices),
            bubble_share=_mean(entry.bubble_share for entry in devices),
            times_of="emulated devices" if self._first.emulation else "this host",
            first_step=self._first.first_step,
            checkpoint=self._checkpoint,
            losses=losses,
            evaluations=tuple(self._evaluations),
            step_times_s=tuple(done.step_times_s),
            generations=tuple(done.generations),
            phases=phases_of(
                done.step_times_s,
                done.generations,
                {
                    index: (each.plan.planner, each.estimate.step_time_s)
                    for index, each in enumerate(self._generations)
                },
                self._first.first_step,
            ),
            max_loss_difference=self._loss_difference(losses) if verify else None,
            stages=tuple(StageTimes(**entry) for rank in ranks for entry in rank["stages"]),
            devices=devices,
            replans=tuple(self._replan(line) for line in self._switches),
            timeline=measured_timeline(ranks, [rank["trace"] for rank in ranks]),
            earlier_timelines=tuple(
                measured_timeline(ranks, records)
                for records in zip(*(rank["earlier_traces"] for rank in ranks), strict=True)
            ),
            memory_curves=_memory_curves(ranks),
            final_plan=last.plan,
            final_estimate=last.estimate_with_memory(),
        )

    def _progress(self, line: Mapping[str, Any]) -> StepProgress:
        generation = self._generations[line["generation"]]
        plan, rows = generation.plan, {}
        if self._first.engine == "heterps":  # torch's records no actions
            ranks, figures = self._ranks_of(line["generation"]), line["figures"]
            rows = {device: figures[ranks[device]] for device in plan.devices} if figures else {}
        unlearned = self._unlearned[line["generation"]]
        taken = [Taken(*entry) for entry in line.get("links", ())]
        links = measured_seconds(self.problem, unlearned.links, taken) if taken else ()
        return StepProgress(
            step=line["step"],
            num_steps=self._first.num_steps,
            loss=line["loss"],
            generation=line["generation"],
            measured=step_figures(plan, line["step_time_s"], rows, self._memory_bytes, links),
            predicted=generation.figures,
            unlearned=unlearned,
            memory_limit_bytes=generation.estimate.memory_limit_bytes,
        )

    def _ranks_of(self, generation: int) -> Mapping[str, int]:
        """Ranks of the devices under one plan."""
        return self._first.ranks

    def _steps_of(self, generation: int) -> range:
        """Steps of one plan, before the first slowdown where there is such a step."""
        # Slowdowns count from the beginning of training, the lists from the first step of the run.
        drifts_at = min((entry.step or 0 for entry in self._first.slowdowns), default=None)
        generations = self.done.generations
        first = generations.index(generation)
        stop = len(generations) - generations[::-1].index(generation)
        if drifts_at is not None and first < drifts_at - self._first.first_step < stop:
            stop = drifts_at - self._first.first_step
        return range(first, stop)

    def _median_s(self, generation: int) -> float:
        done = self.done
        return median_step_time_s(done.step_times_s, done.generations, self._steps_of(generation))

    def _replan(self, line: dict[str, Any]) -> Replan:
        generation = int(line["switched_to"])
        return Replan(
            step=line["step"],
            generation=generation,
            planner=self._generations[generation].plan.planner,
            predicted_step_time_s=self._generations[generation].estimate.step_time_s,
            measured_step_time_s=self._median_s(generation),
            seconds=line["seconds"],
            bytes_moved=line["bytes_moved"],
        )

    def _device_report(self, rank: dict[str, Any]) -> DeviceReport:
        # The last plan that was switched to; a later one may have been written in vain.
        number = self.done.generations[-1]
        last, device = self._generations[number], rank["device"]
        steps = warm_steps(self.done.generations, self._steps_of(number))
        pairs = self.done.bubbles(device, steps)
        bubbles = [share for _, share in pairs]
        busy_s = [seconds * (1 - share) for seconds, share in pairs]
        return DeviceReport(
            is_emulated=self.problem.device_named[device].type.emulation is not None,
            stage_names=tuple(s.name for s in last.plan.stages if device in s.devices),
            bubble_share=statistics.median(bubbles) if bubbles else None,
            busy_s=statistics.median(busy_s) if busy_s else None,
            predicted_bubble_share=last.figures.bubble_shares.get(device),
            predicted_memory_bytes=last.estimate.memory_bytes.get(device),
            memory_limit_bytes=last.estimate.memory_limit_bytes.get(device),
            **{name: rank[name] for name in DeviceReport.model_fields if name in rank},
        )

    def _loss_difference(self, losses: Sequence[float]) -> float:
        expected = json.loads((self.directory / REFERENCE_FILE).read_text())
        # A callback of the user's may have ended the run early.
        return max_difference(losses, expected[: len(losses)])


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
