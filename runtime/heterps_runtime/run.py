"""Runs a plan: `run_plan(problem, plan, steps=20)` trains under torchrun and says what it took."""

from __future__ import annotations

import json
import tempfile
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from heterps_configs.errors import HeterpsError
from heterps_configs.estimate import TimelineEvent
from heterps_configs.plan import Plan
from heterps_envs.actions import Schedule
from heterps_envs.problem import Problem
from heterps_envs.schedule import build_schedule
from heterps_envs.simulator import simulate
from heterps_runtime.checkpoint_files import CheckpointSettings
from heterps_runtime.host_group import HostGroup
from heterps_runtime.launcher import (
    Workers,
    prepare_directory,
    reference_command,
    torchrun_command,
)
from heterps_runtime.measurements import Measurements, StageTimes, newest_measurements
from heterps_runtime.run_result import (
    DeviceReport,
    Replan,
    RunResult,
    StepProgress,
    median_step_time_s,
)
from heterps_runtime.run_specification import (
    SPECIFICATION_FILE,
    Engine,
    RunSpecification,
    Slowdown,
    next_plan_path,
)
from heterps_runtime.several_hosts import Launch, announce
from heterps_runtime.specification_builder import build_specification, check_runnable, replanned
from heterps_runtime.starting_point import StartingPoint
from heterps_runtime.torch_plan import check_torch_engine, devices_in_order
from heterps_runtime.verify import REFERENCE_FILE, max_difference

@dataclass(frozen=True)
class PlanUpdate:
    """A controller's answer: go on under this plan.

    Attributes:
        plan: For the same model, cluster and job.
        problem: The problem as measurements corrected it: what orders the schedule and predicts.
        from_step: The first step that may run under the plan.
    """

    plan: Plan
    problem: Problem
    from_step: int = 0


Controller = Callable[[Measurements], PlanUpdate | None]


def run_plan(
    problem: Problem,
    plan: Plan,
    *,
    steps: int,
    seed: int = 0,
    verify: bool = False,
    run_directory: str | Path | None = None,
    schedule: Schedule | None = None,
    learning_rate: float | None = None,
    slowdowns: Sequence[Slowdown] = (),
    controller: Controller | None = None,
    updates: Sequence[PlanUpdate] = (),
    measure_every: int = 5,
    on_progress: Callable[[StepProgress], None] = lambda progress: None,
    timeout_s: float | None = None,
    port: int | None = None,
    num_threads: int = 1,
    checkpoint: CheckpointSettings | None = None,
    resume: bool = False,
    weights: str | Path | None = None,
    on_message: Callable[[str], None] = warnings.warn,
    engine: Engine = "heterps",
    hosts: HostGroup | None = None,
) -> RunResult:
    """Trains until step `steps` under a plan, one process for each device.

    Emulated devices take the times of the problem; all others run at the speed of this host.

    Args:
        problem: What the plan was made for.
        plan: What runs.
        steps: Optimizer steps, counted from the beginning of training.
        seed: Of the initial parameters and of the data.
        verify: Train in one process as well, and compare the losses.
        run_directory: Where specification, log, measurements and results are left; by default a
            temporary one.
        schedule: The plan's action lists; by default `build_schedule(problem, plan)`.
        learning_rate: None for the optimizer's usual one.
        slowdowns: Drift of emulated devices that the planner does not know.
        controller: Sees every measurement, while the run goes on, and may answer with a new plan.
        updates: New plans that are known from the start, in order, with their first steps.
        measure_every: Steps between two measurements for the controller.
        on_progress: Called after every step.
        timeout_s: The run is ended after this many seconds.
        port: Port of torchrun's rendezvous; by default a free one.
        num_threads: Threads of one worker's kernels.
        checkpoint: Where and how often to save; None for never.
        resume: Go on from the newest checkpoint of that folder, whatever plan it was saved under.
        weights: Folder of safetensors files that the parameters are read from.
        on_message: Called with remarks: what is ignored, a save that failed.
        engine: What carries out the steps; `torch` for the schedules of
            torch.distributed.pipelining, at the speed of this host and without measured actions.
        hosts: On host 0 of several; the others call `several_hosts.join_run`.

    Raises:
        PlanMismatchError: The plan was made for another model, cluster or job; the checkpoint is of
            another model.
        HeterpsError: The plan cannot be run, there is nothing to start from, an emulated device
            needs more memory than it has, or a worker failed (with its first error).
    """
    check_runnable(problem, plan, slowdowns, steps)
    if engine == "torch":
        check_torch_engine(plan, is_online=controller is not None or bool(updates))
    schedule = schedule or build_schedule(problem, plan)
    is_online = controller is not None or bool(updates)
    ranks = _ranks(problem, plan, engine, is_online)
    devices = [tuple(ranks)] if hosts is None else hosts.hosts.devices(problem.cluster, ranks)
    specification = build_specification(
        problem,
        plan,
        schedule,
        devices=[name for own in devices for name in own],
        num_steps=steps,
        seed=seed,
        learning_rate=learning_rate,
        slowdowns=slowdowns,
        is_online=is_online,
        measure_every=measure_every,
        num_threads=num_threads,
    )
    start = StartingPoint(seed, learning_rate, checkpoint, resume, weights)
    specification, remarks = start.applied_to(specification, problem, plan)
    for remark in remarks:
        on_message(remark)
    if engine == "torch":
        if specification.emulation is not None:
            on_message("--engine torch: nothing is emulated; the run has the speed of this host")
        specification = specification.model_copy(update={"engine": engine, "emulation": None})
    with ExitStack() as stack:
        directory = Path(run_directory or stack.enter_context(tempfile.TemporaryDirectory()))
        prepare_directory(directory)
        run = _Run(problem, specification, directory, controller, on_progress, on_message)
        run.predict(problem, plan, schedule)
        specification.to_json_file(directory / SPECIFICATION_FILE)
        for update in updates:
            run.write_update(update)
        command = torchrun_command(directory, len(specification.devices), port)
        launch = Launch(command)
        if hosts is not None:
            launch = announce(hosts, specification, devices, directory)
        with Workers(launch.command, directory, num_threads, launch.environment) as workers:
            workers.wait(run.on_line, lambda: (run.on_poll(), launch.poll()), timeout_s)
        if hosts is not None:
            hosts.collect(directory, len(specification.devices))
        if verify:
            # Afterwards: on the same cores it would take time from the workers.
            with Workers(reference_command(directory), directory, num_threads) as workers:
                workers.wait(lambda line: None, lambda: None, timeout_s)
        return run.result(verify)


def _ranks(problem: Problem, plan: Plan, engine: Engine, is_online: bool) -> Sequence[str]:
    """Devices by rank. Online, all of the cluster have a process, so that idle ones can join."""
    if is_online:
        return [device.name for device in problem.cluster.devices]
    return devices_in_order(plan) if engine == "torch" else plan.devices


class _Run:
    """What the parent knows of a run while it goes on."""

    def __init__(
        self,
        problem: Problem,
        specification: RunSpecification,
        directory: Path,
        controller: Controller | None,
        on_progress: Callable[[StepProgress], None],
        on_message: Callable[[str], None],
    ) -> None:
        self.problem, self.directory = problem, directory
        self.on_message = on_message
        self.checkpoint: str | None = None
        self.first = self.newest = specification
        self.controller, self.on_progress = controller, on_progress
        self.steps: list[StepProgress] = []
        self.switches: list[dict[str, Any]] = []
        self.plans: list[Plan] = []
        self.predicted_s: list[float] = []
        self.predicted_bytes: list[Mapping[str, int]] = []
        self.seen_step = -1

    def predict(self, problem: Problem, plan: Plan, schedule: Schedule) -> None:
        """Remembers a plan, its predicted step time and memory, by generation."""
        estimate = simulate(problem, plan, schedule)
        self.plans.append(plan)
        self.predicted_s.append(estimate.step_time_s)
        self.predicted_bytes.append(estimate.memory_bytes)

    def on_line(self, line: dict[str, Any]) -> None:
        """Takes what rank 0 printed."""
        if "switched_to" in line:
            self.switches.append(line)
        elif "step_time_s" in line:
            progress = StepProgress(num_steps=self.first.num_steps, **line)
            self.steps.append(progress)
            self.on_progress(progress)
        elif "checkpoint" in line:
            self.checkpoint = line["checkpoint"]
        elif "message" in line:
            self.on_message(line["message"])

    def on_poll(self) -> None:
        """Shows the controller the newest measurements of the newest plan."""
        if self.controller is None:
            return
        measurements = newest_measurements(self.directory, self.seen_step)
        if measurements is None:
            return
        self.seen_step = measurements.step
        if measurements.generation == self.newest.generation:
            update = self.controller(measurements)
            if update is not None:
                self.write_update(update)

    def write_update(self, update: PlanUpdate) -> None:
        """Hands the workers a new plan."""
        check_runnable(self.problem, update.plan)
        schedule = build_schedule(update.problem, update.plan)
        self.newest = replanned(self.newest, self.problem, update.plan, schedule, update.from_step)
        self.predict(update.problem, update.plan, schedule)
        self.newest.to_json_file(next_plan_path(self.directory, self.newest.generation))

    def result(self, verify: bool) -> RunResult:
        """Collects what the workers left."""
        ranks = [
            json.loads((self.directory / f"result-{rank}.json").read_text())
            for rank in range(len(self.first.devices))
        ]
        losses = tuple(step.loss for step in self.steps)
        measured_s = self._median_s(0)
        return RunResult(
            predicted_step_time_s=self.predicted_s[0],
            measured_step_time_s=measured_s,
            relative_error=self.predicted_s[0] / measured_s - 1,
            times_of="emulated devices" if self.first.emulation else "this host",
            first_step=self.first.first_step,
            checkpoint=self.checkpoint,
            losses=losses,
            step_times_s=tuple(step.step_time_s for step in self.steps),
            generations=tuple(step.generation for step in self.steps),
            max_loss_difference=self._loss_difference(losses) if verify else None,
            stages=tuple(StageTimes(**entry) for rank in ranks for entry in rank["stages"]),
            devices=tuple(self._device_report(rank) for rank in ranks),
            replans=tuple(self._replan(line) for line in self.switches),
            timeline=_timeline(ranks),
        )

    def _median_s(self, generation: int) -> float:
        """Of one plan, before the first slowdown where there is such a step."""
        drifts_at = min((entry.from_step for entry in self.first.slowdowns), default=None)
        times = [step.step_time_s for step in self.steps]
        generations = [step.generation for step in self.steps]
        first = generations.index(generation)
        stop = len(generations) - generations[::-1].index(generation)
        # Slowdowns count from the beginning of training, the lists from the first step of the run.
        drifts_at = None if drifts_at is None else drifts_at - self.first.first_step
        if drifts_at is not None and first < drifts_at < stop:
            stop = drifts_at
        return median_step_time_s(times, generations, range(first, stop))

    def _replan(self, line: dict[str, Any]) -> Replan:
        generation = int(line["switched_to"])
        return Replan(
            step=line["step"],
            generation=generation,
            planner=self.plans[generation].planner,
            predicted_step_time_s=self.predicted_s[generation],
            measured_step_time_s=self._median_s(generation),
            seconds=line["seconds"],
            bytes_moved=line["bytes_moved"],
        )

    def _device_report(self, rank: dict[str, Any]) -> DeviceReport:
        # The last plan that was switched to; a later one may have been written in vain.
        predicted_bytes = self.predicted_bytes[self.steps[-1].generation]
        return DeviceReport(
            is_emulated=self.problem.device_named[rank["device"]].type.emulation is not None,
            predicted_memory_bytes=predicted_bytes.get(rank["device"]),
            **{name: rank[name] for name in DeviceReport.model_fields if name in rank},
        )

    def _loss_difference(self, losses: Sequence[float]) -> float:
        return max_difference(losses, json.loads((self.directory / REFERENCE_FILE).read_text()))


def _timeline(ranks: Sequence[dict[str, Any]]) -> tuple[TimelineEvent, ...]:
    """Of the last step, in the shape of an estimate's timeline."""
    return tuple(
        TimelineEvent(
            device=rank["device"],
            action=kind,
            stage=stage,
            micro_batch=micro_batch,
            start_s=start_s,
            end_s=end_s,
        )
        for rank in ranks
        for kind, stage, micro_batch, start_s, end_s in rank["trace"]
    )
