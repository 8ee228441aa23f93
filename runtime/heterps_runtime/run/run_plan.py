"""Runs a plan: `run_plan(problem, plan, steps=20)` trains and says what it took."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule.actions import Schedule
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.process.template import Template
from heterps_runtime.run.host_group import HostGroup
from heterps_runtime.run.launcher import (
    LOG_FILE,
    WORKER_MODULE,
    Workers,
    prepare_directory,
    run_reference,
    worker_environment,
)
from heterps_runtime.run.parent import Controller, PlanUpdate, RunState
from heterps_runtime.run.result import RunResult, StepProgress
from heterps_runtime.run.several_hosts import announce
from heterps_runtime.run.starting_point import StartingPoint
from heterps_runtime.run.world import World
from heterps_runtime.specification.build import (
    build_specification,
    check_importable,
    check_runnable,
)
from heterps_runtime.specification.checkpoint_settings import CheckpointSettings
from heterps_runtime.specification.devices import torch_devices
from heterps_runtime.specification.hosts import gloo_environment
from heterps_runtime.specification.run import SPECIFICATION_FILE, Engine, Slowdown
from heterps_runtime.specification.torch_plan import check_torch_engine, devices_in_order


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
    max_gradient_norm: float | None = None,
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
    num_timelines: int = 1,
    measure_links: bool = False,
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
        max_gradient_norm: Gradients are clipped to it, over the whole model; None for no limit.
        slowdowns: Drift of emulated devices that the planner does not know.
        controller: Sees every measurement, while the run goes on, and may answer with a new plan.
        updates: New plans that are known from the start, in order, with their first steps.
        measure_every: Steps between two measurements for the controller.
        on_progress: Called after every step.
        timeout_s: The run is ended after this many seconds.
        port: Where ranks meet; by default a free one.
        num_threads: Threads of one worker's kernels.
        checkpoint: Where and how often to save; None for never.
        resume: Go on from the newest checkpoint of that folder, whatever plan it was saved under.
        weights: Folder of safetensors files that the parameters are read from.
        on_message: Called with remarks: what is ignored, a save that failed.
        engine: What carries out the steps; `torch` for the schedules of
            torch.distributed.pipelining, at the speed of this host and without measured actions.
        hosts: On host 0 of several; the others call `several_hosts.join_run`.
        num_timelines: Of how many of the last steps the result has the actions.
        measure_links: Time the messages of every step, too; online runs always do.

    Raises:
        PlanMismatchError: The plan was made for another model, cluster or job; the checkpoint is of
            another model.
        HeterpsError: The plan cannot be run, there is nothing to start from, an emulated device
            needs more memory than it has, or a worker failed (with its first error).
    """
    check_runnable(problem, plan, slowdowns, steps)
    check_importable(problem)
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
    specification = specification.changed(num_timelines=num_timelines, measures_links=measure_links)
    start = StartingPoint(seed, learning_rate, checkpoint, resume, weights, max_gradient_norm)
    specification, remarks = start.applied_to(specification, problem, plan)
    if engine == "heterps":
        wanted = torch_devices(problem.cluster, specification.devices)
        specification = specification.changed(torch_devices=wanted)
    for remark in remarks:
        on_message(remark)
    if engine == "torch":
        if specification.emulation is not None:
            on_message("--engine torch: nothing is emulated; the run has the speed of this host")
        specification = specification.changed(engine=engine, emulation=None)
    with ExitStack() as stack:
        directory = Path(run_directory or stack.enter_context(tempfile.TemporaryDirectory()))
        prepare_directory(directory)
        environment = {
            **worker_environment(num_threads),
            **gloo_environment(None if hosts is None else hosts.hosts),
        }
        # It imports what ranks need while the rest is prepared.
        template = stack.enter_context(Template(WORKER_MODULE, environment, directory / LOG_FILE))
        run = RunState(problem, specification, directory, controller, on_progress, on_message)
        run.predict(problem, plan, schedule)
        specification.to_json_file(directory / SPECIFICATION_FILE)
        for update in updates:
            run.write_update(update)
        if hosts is None:
            world = World.of_this_host(len(specification.devices), port)
        else:
            world = announce(hosts, specification, devices)
        look_at_others = (lambda: None) if hosts is None else hosts.poll
        with Workers(template, directory, [str(directory)], environment, world) as workers:
            world.close()
            workers.wait(run.on_line, run.on_poll, timeout_s, look_at_others)
        if hosts is not None:
            hosts.collect(directory, len(specification.devices))
        if verify:
            # Afterwards: on the same cores it would take time from the workers.
            run_reference(template, directory, environment, timeout_s)
        return run.result(verify)


def _ranks(problem: Problem, plan: Plan, engine: Engine, is_online: bool) -> Sequence[str]:
    """Devices by rank. Online, all of the cluster have a process, so that idle ones can join."""
    if is_online:
        return [device.name for device in problem.cluster.devices]
    return devices_in_order(plan) if engine == "torch" else plan.devices
