"""What the parent of an elastic run knows: plans, steps that came and were taken back, results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.results.changes import Recovery
from heterps_runtime.results.progress import StepProgress
from heterps_runtime.results.result import RunResult
from heterps_runtime.results.step_figures import StepFigures
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.run.parent import RunState
from heterps_runtime.specification.build import check_runnable, replanned
from heterps_runtime.specification.run import RunSpecification, next_plan_path


class ElasticState(RunState):
    """As of any run; but generations have ranks of their own, and steps may be run again.

    Args:
        problem: Of the run, with all devices.
        specification: Of its first plan.
        directory: Run directory.
        hooks: Who is told.

    Attributes:
        updates: What the controller has answered, and nobody has taken yet.
        recoveries: Those that are over.
    """

    def __init__(
        self,
        problem: Problem,
        specification: RunSpecification,
        directory: Path,
        hooks: RunHooks,
    ) -> None:
        super().__init__(problem, specification, directory, hooks)
        self.updates: list[PlanUpdate] = []
        self.recoveries: list[Recovery] = []
        self._devices: list[tuple[str, ...]] = [specification.devices]

    @property
    def newest(self) -> RunSpecification:
        """Of the newest plan."""
        return self._newest

    @property
    def next_step(self) -> int:
        """The first step that is not done."""
        return self.done.steps[-1] + 1 if self.done.steps else self._first.first_step

    @property
    def predicted_step_time_s(self) -> float:
        """Of the newest plan."""
        return self._generations[-1].estimate.step_time_s

    def write_update(self, update: PlanUpdate) -> None:
        """Keeps a controller's plan for the supervisor."""
        self.updates.append(update)

    def adopt(self, update: PlanUpdate, devices: Sequence[str]) -> RunSpecification:
        """The specification of a new generation.

        Args:
            update: Its plan.
            devices: Its ranks.
        """
        check_runnable(self.problem, update.plan)
        schedule = build_schedule(update.problem, update.plan)
        self._newest = replanned(
            self._newest, self.problem, update.plan, schedule, update.from_step, devices
        )
        self._devices.append(self._newest.devices)
        return self._newest

    def describe_adopted(self, update: PlanUpdate) -> None:
        """Predicts the plan that was adopted last, and leaves it in the run directory."""
        self.predict(update.problem, update.plan, build_schedule(update.problem, update.plan))
        self._newest.to_json_file(next_plan_path(self.directory, self._newest.generation))

    def update_of(self, plan: Plan) -> PlanUpdate:
        """A plan that ran, once more, with the problem that it was made for."""
        for generation in reversed(self._generations):
            if generation.plan == plan:
                return PlanUpdate(plan, generation.problem, self.next_step, "the same plan")
        return PlanUpdate(plan, self.problem, self.next_step, "the same plan")

    def on_line(self, line: dict[str, Any]) -> None:
        """Takes what the first rank of a generation printed."""
        if "committed" in line:
            self._take_committed(**line["committed"])
            return
        if "recovered" in line:
            self._memory_bytes = {}
        is_late = "step_time_s" in line and line["generation"] < self._steps_generation(line)
        if not is_late:
            super().on_line(line)

    def result(self) -> RunResult:
        """Collects what the workers left."""
        return super().result().changed(recoveries=tuple(self.recoveries))

    def _steps_generation(self, line: Mapping[str, Any]) -> int:
        """The generation under which a step is known to be done; -1 where it is not."""
        done = self.done
        # Nearly always it is the next one: no other is looked at.
        is_done = bool(done.steps) and done.steps[-1] >= line["step"]
        return done.generations[-1] if is_done else -1

    def _take_step(self, progress: StepProgress) -> None:
        # Steps that come again were taken back.
        self.done.take_back_from(progress.step)
        super()._take_step(progress)

    def _take_committed(self, step: int, loss: float, generation: int) -> None:
        """A step whose first rank was lost before it reported it: the loss is known, no seconds."""
        if step != self.next_step or step < self._first.first_step:
            return
        known = self._generations[generation]
        times_s = self.done.step_times_s
        seconds = times_s[-1] if times_s else known.estimate.step_time_s
        self._take_step(
            StepProgress(
                step=step,
                num_steps=self._first.num_steps,
                loss=loss,
                generation=generation,
                measured=StepFigures(seconds),
                predicted=known.figures,
                memory_limit_bytes=known.estimate.memory_limit_bytes,
                unlearned=self._unlearned[generation],
            )
        )

    def _ranks_of(self, generation: int) -> Mapping[str, int]:
        return {device: rank for rank, device in enumerate(self._devices[generation])}
