"""Runs a plan: `run_plan(problem, plan, RunSettings(steps=20))` trains and says what it took."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import Engine, RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.huggingface.library import modules_of
from heterps_runtime.models.trust import trust_source
from heterps_runtime.process.template import Template
from heterps_runtime.results.result import RunResult
from heterps_runtime.run.hooks import PlanUpdate, RunHooks
from heterps_runtime.run.host_group import HostGroup
from heterps_runtime.run.launcher import (
    RECORDING_MODULE,
    WORKER_MODULE,
    Workers,
    prepare_directory,
    run_reference,
    worker_environment,
)
from heterps_runtime.run.parent import RunState
from heterps_runtime.run.rank_errors import LOG_FILE
from heterps_runtime.run.several_hosts import announce
from heterps_runtime.run.starting_point import begin
from heterps_runtime.run.world import World
from heterps_runtime.specification.build import check_importable, check_runnable
from heterps_runtime.specification.hosts import gloo_environment
from heterps_runtime.specification.run import SPECIFICATION_FILE
from heterps_runtime.specification.torch_plan import (
    check_torch_engine,
    devices_in_order,
    modules_of_engine,
)
from heterps_runtime.specification.trust import agreed_program


def run_plan(
    problem: Problem,
    plan: Plan,
    settings: RunSettings,
    *,
    events: Sequence[RunEvent] = (),
    updates: Sequence[PlanUpdate] = (),
    hooks: RunHooks | None = None,
    trust_code: bool = False,
    hosts: HostGroup | None = None,
) -> RunResult:
    """Trains until a step under a plan, one process for each device.

    Emulated devices take the times of the problem; all others run at the speed of this host.

    Args:
        problem: What the plan was made for.
        plan: What runs.
        settings: How.
        events: Emulated devices and links that get slower.
        updates: New plans that are known from the start, in order, with their first steps.
        hooks: Who is called while the run goes on; by default remarks are warnings.
        trust_code: Code that the profile or the settings name may run.
        hosts: On host 0 of several; the others call `several_hosts.join_run`.

    Raises:
        PlanMismatchError: The plan was made for another model, cluster or job; the checkpoint is of
            another model.
        HeterpsError: The plan cannot be run, there is nothing to start from, an emulated device
            needs more memory than it has, or a worker failed (with its first error).
    """
    hooks = hooks or RunHooks()
    if trust_code:
        trust_source(problem.profile.source)
    program = agreed_program(settings, trust_code=trust_code)
    is_online = hooks.controller is not None or bool(updates)
    _check(problem, plan, events)
    if settings.engine == "torch":
        check_torch_engine(plan, is_online)
    schedule = build_schedule(problem, plan)
    ranks = _ranks(problem, plan, settings.engine, is_online)
    devices = [tuple(ranks)] if hosts is None else hosts.hosts.devices(problem.cluster, ranks)
    specification = begin(
        problem,
        plan,
        schedule,
        settings,
        devices=[name for own in devices for name in own],
        events=events,
        is_online=is_online,
        on_message=hooks.on_message,
    ).changed(program=program)
    with ExitStack() as stack:
        directory = working_directory(settings, stack)
        environment = {
            **worker_environment(settings.num_threads),
            **gloo_environment(None if hosts is None else hosts.hosts),
        }
        # It imports what ranks need while the rest is prepared.
        own = [*modules_of(problem.profile.source), *modules_of_engine(settings.engine)]
        template = stack.enter_context(
            Template(WORKER_MODULE, environment, directory / LOG_FILE, [RECORDING_MODULE, *own])
        )
        run = RunState(problem, specification, directory, hooks)
        run.predict(problem, plan, schedule)
        specification.to_json_file(directory / SPECIFICATION_FILE)
        for update in updates:
            run.write_update(update)
        if hosts is None:
            world = World.of_this_host(len(specification.devices), settings.port)
        else:
            world = announce(hosts, specification, devices)
        look_at_others = (lambda: None) if hosts is None else hosts.poll
        with Workers(template, directory, [str(directory)], environment, world) as workers:
            workers.wait(run.on_line, run.on_poll, settings.timeout_s, look_at_others)
        if hosts is not None:
            hosts.collect(directory, len(specification.devices))
        # Afterwards: on the same cores it would take time from the workers.
        reference = partial(run_reference, template, directory, environment, settings.timeout_s)
        return run.finished(reference if settings.verify else None)


def working_directory(settings: RunSettings, stack: ExitStack) -> Path:
    """An empty run directory; a temporary one ends with the stack."""
    chosen = settings.run_directory
    directory = Path(chosen or stack.enter_context(tempfile.TemporaryDirectory()))
    prepare_directory(directory)
    return directory


def _check(problem: Problem, plan: Plan, events: Sequence[RunEvent]) -> None:
    """Refuses what cannot be run, and events that only elastic runs go through.

    Raises:
        HeterpsError: As `run_plan` does.
    """
    check_runnable(problem, plan, events)
    check_importable(problem)
    for event in events:
        if event.slow is None:
            raise HeterpsError(f"the event {event.kind} {event.subject!r} needs --elastic")


def _ranks(problem: Problem, plan: Plan, engine: Engine, is_online: bool) -> Sequence[str]:
    """Devices by rank. Online, all of the cluster have a process, so that idle ones can join."""
    if is_online:
        return [device.name for device in problem.cluster.devices]
    return devices_in_order(plan) if engine == "torch" else plan.devices
