"""Runs a plan on devices that come and go: `run_elastic(problem, plan, steps=20, ...)`."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.elastic.heartbeats import Watching
from heterps_runtime.elastic.parent import ElasticState
from heterps_runtime.elastic.processes import Processes
from heterps_runtime.elastic.records import Event, Replanner
from heterps_runtime.elastic.supervisor import Supervisor
from heterps_runtime.process.template import Template
from heterps_runtime.run.launcher import (
    LOG_FILE,
    WORKER_MODULE,
    prepare_directory,
    run_reference,
    worker_environment,
)
from heterps_runtime.run.parent import Controller, PlanUpdate
from heterps_runtime.run.result import RunResult, StepProgress
from heterps_runtime.run.starting_point import StartingPoint
from heterps_runtime.specification.build import (
    build_specification,
    check_importable,
    check_runnable,
)
from heterps_runtime.specification.checkpoint_settings import CheckpointSettings
from heterps_runtime.specification.devices import torch_devices
from heterps_runtime.specification.run import SPECIFICATION_FILE, Slowdown


def run_elastic(
    problem: Problem,
    plan: Plan,
    *,
    steps: int,
    replanner: Replanner,
    seed: int = 0,
    verify: bool = False,
    run_directory: str | Path | None = None,
    schedule: Schedule | None = None,
    learning_rate: float | None = None,
    max_gradient_norm: float | None = None,
    slowdowns: Sequence[Slowdown] = (),
    controller: Controller | None = None,
    measure_every: int = 5,
    on_progress: Callable[[StepProgress], None] = lambda progress: None,
    timeout_s: float | None = None,
    num_threads: int = 1,
    checkpoint: CheckpointSettings | None = None,
    resume: bool = False,
    weights: str | Path | None = None,
    on_message: Callable[[str], None] = warnings.warn,
    num_timelines: int = 1,
    measure_links: bool = False,
    heartbeat_s: float = 1.5,
    stall_s: float | None = None,
    events: Sequence[Event] = (),
    absent: Sequence[str] = (),
    on_plan: Callable[[PlanUpdate, Sequence[str]], None] = lambda update, alive: None,
) -> RunResult:
    """Trains until step `steps`, whatever happens to the devices on the way.

    Each device of the cluster has a process; those without a stage stand by. A device whose process
    ends, or shows no sign of life, is lost: the others go on under a new plan with the state that
    they hold, take what is missing from where it still is
    (`heterps_runtime.elastic.state_recovery`), and run the interrupted step again on the same
    samples.

    Args:
        problem: What the plan was made for, with all devices that may ever take part.
        plan: What runs first.
        steps: Optimizer steps, counted from the beginning of training.
        replanner: Finds the plan of a changed set of devices.
        seed: Of the initial parameters and of the data.
        verify: Train in one process as well, and compare the losses.
        run_directory: Where specification, logs, measurements and results are left; by default a
            temporary one.
        schedule: The first plan's action lists; by default `build_schedule(problem, plan)`.
        learning_rate: None for the optimizer's usual one.
        max_gradient_norm: Gradients are clipped to it, over the whole model; None for no limit.
        slowdowns: Drift of emulated devices that the planner does not know.
        controller: Sees every measurement, and may answer with a new plan.
        measure_every: Steps between two measurements for the controller.
        on_progress: Called after every step; steps that are run again come again.
        timeout_s: The run is ended after this many seconds.
        num_threads: Threads of one worker's kernels.
        checkpoint: Where to save; with a remote URL, where copies go. Without one, a lost device
            that held the only copy of a layer takes the run back to its beginning.
        resume: Go on from the newest checkpoint, whatever plan it was saved under.
        weights: Folder of safetensors files that the parameters are read from.
        on_message: Called with remarks: what is lost, what comes, what is ignored.
        num_timelines: Of how many of the last steps the result has the actions.
        measure_links: Time the messages of every step, too; online runs always do.
        heartbeat_s: A process without a sign of life for so long is taken for lost.
        stall_s: So long may nothing go on while all processes are alive; by default half a minute,
            or ten steps as predicted where that is longer.
        events: Faults and joins that are injected.
        absent: Devices that are not there at first.
        on_plan: Called with each plan that the run goes on with, and the devices that there are.

    Raises:
        PlanMismatchError: As `run_plan` does.
        NotEnoughDevicesError: The devices that are left are too few for any plan.
        HeterpsError: As `run_plan` does, or `replanner` finds no plan.
    """
    check_runnable(problem, plan, slowdowns, steps)
    check_importable(problem)
    _check(problem, plan, events, absent, heartbeat_s)
    schedule = schedule or build_schedule(problem, plan)
    names = [device.name for device in problem.cluster.devices]
    specification = build_specification(
        problem,
        plan,
        schedule,
        devices=[name for name in names if name in plan.devices],
        num_steps=steps,
        seed=seed,
        learning_rate=learning_rate,
        slowdowns=slowdowns,
        is_online=controller is not None,
        measure_every=measure_every,
        num_threads=num_threads,
    )
    start = StartingPoint(seed, learning_rate, checkpoint, resume, weights, max_gradient_norm)
    specification, remarks = start.applied_to(specification, problem, plan)
    wanted = torch_devices(problem.cluster, specification.devices)
    specification = specification.changed(
        num_timelines=num_timelines, torch_devices=wanted, measures_links=measure_links
    )
    for remark in remarks:
        on_message(remark)
    with ExitStack() as stack:
        directory = Path(run_directory or stack.enter_context(tempfile.TemporaryDirectory()))
        prepare_directory(directory)
        run = ElasticState(problem, specification, directory, controller, on_progress, on_message)
        run.predict(problem, plan, schedule)
        specification.to_json_file(directory / SPECIFICATION_FILE)
        predicted_s = run.predicted_step_time_s
        with Processes(directory, num_threads) as processes:
            Supervisor(
                problem.cluster,
                run,
                processes,
                directory,
                replanner,
                watching=Watching(heartbeat_s, stall_s or max(30.0, 10 * predicted_s)),
                events=events,
                absent=absent,
                on_plan=on_plan,
                on_message=on_message,
            ).lead(timeout_s)
        if verify:
            environment = worker_environment(num_threads)
            with Template(WORKER_MODULE, environment, directory / LOG_FILE) as template:
                run_reference(template, directory, environment, timeout_s)
        return run.result(verify)


def _check(
    problem: Problem,
    plan: Plan,
    events: Sequence[Event],
    absent: Sequence[str],
    heartbeat_s: float,
) -> None:
    """Refuses what makes no sense.

    Raises:
        HeterpsError: A name is no device of the cluster, the plan needs a device that is absent, or
            heartbeats are to be missed sooner than they come.
    """
    known = [device.name for device in problem.cluster.devices]
    for name in (*absent, *(event.device for event in events)):
        if name not in known:
            raise HeterpsError(f"no device {name!r} in this cluster; it has {', '.join(known)}")
    missing = sorted(set(absent) & set(plan.devices))
    if missing:
        raise HeterpsError(f"the plan needs {', '.join(missing)}, which is absent at first")
    if heartbeat_s < 0.3:
        raise HeterpsError(f"heartbeat of {heartbeat_s:g} s: at least 0.3 s, three heartbeats")
