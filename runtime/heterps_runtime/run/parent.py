"""What the parent of a run knows while it goes on: plans, steps, switches, the last checkpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.results.collect import RunRecord, collect
from heterps_runtime.results.generation import Generation
from heterps_runtime.results.link_times import Taken, measured_seconds
from heterps_runtime.results.measurements import newest_measurements
from heterps_runtime.results.progress import DoneSteps, StepProgress
from heterps_runtime.results.result import (
    RESULT_FILE,
    Evaluation,
    RunResult,
    VerificationInterrupt,
)
from heterps_runtime.results.step_figures import StepFigures, step_figures
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.run.verify import REFERENCE_FILE, max_difference
from heterps_runtime.specification.build import check_runnable, replanned
from heterps_runtime.specification.run import RunSpecification, next_plan_path


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
        self._checkpoint_error: str | None = None
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
        elif "checkpoint_error" in line:
            self._checkpoint_error = line["checkpoint_error"]
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

    def finished(self, reference: Callable[[], None] | None) -> RunResult:
        """The result, which stays in the run directory, too: whatever happens to the reference.

        Args:
            reference: Trains the same in one process; None where the run is not to be verified.

        Raises:
            VerificationInterrupt: The user ended the training in one process.
        """
        found = self._written(self.result())
        if reference is None:
            return found
        try:
            reference()
        except HeterpsError as error:
            return self._written(found.changed(verification_error=str(error)))
        except KeyboardInterrupt as cause:
            kept = self._written(found.changed(verification_error="it was interrupted"))
            raise VerificationInterrupt(kept, cause) from cause
        difference = self._max_loss_difference()
        return self._written(found.changed(is_verified=True, max_loss_difference=difference))

    def _written(self, result: RunResult) -> RunResult:
        write_text(self.directory / RESULT_FILE, result.model_dump_json())
        return result

    def result(self) -> RunResult:
        """Collects what the workers left."""
        ranks = [
            json.loads((self.directory / f"result-{rank}.json").read_text())
            for rank in range(len(self._newest.devices))
        ]
        record = RunRecord(
            problem=self.problem,
            specification=self._first,
            generations=self._generations,
            done=self.done,
            switches=self._switches,
            evaluations=self._evaluations,
            checkpoint=self._checkpoint,
            drifts=[event.since_step for event in self.hooks.drifts()],
        )
        return collect(record, ranks).changed(checkpoint_error=self._checkpoint_error)

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

    def _max_loss_difference(self) -> float:
        expected, losses = (
            json.loads((self.directory / REFERENCE_FILE).read_text()),
            self.done.losses,
        )
        # A callback of the user's may have ended the run early.
        return max_difference(losses, expected[: len(losses)])
