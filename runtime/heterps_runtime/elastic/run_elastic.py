"""Runs a plan on devices that come and go: `run_elastic(problem, plan, settings, replanner)`."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from typing import NamedTuple

from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import RunSettings
from heterps_configs.errors import HeterpsError
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_runtime.elastic.heartbeats import with_stall_s
from heterps_runtime.elastic.parent import ElasticState
from heterps_runtime.elastic.records import Replanner
from heterps_runtime.elastic.supervisor import Supervisor
from heterps_runtime.fleet.local import LocalPlace
from heterps_runtime.fleet.others import OtherHosts
from heterps_runtime.fleet.processes import Processes
from heterps_runtime.huggingface.library import modules_of
from heterps_runtime.models.trust import trust_source
from heterps_runtime.process.template import Template
from heterps_runtime.results.result import RunResult
from heterps_runtime.run.hooks import RunHooks
from heterps_runtime.run.launcher import WORKER_MODULE, run_reference, worker_environment
from heterps_runtime.run.rank_errors import LOG_FILE
from heterps_runtime.run.run_plan import working_directory
from heterps_runtime.run.starting_point import begin
from heterps_runtime.specification.build import check_importable, check_runnable
from heterps_runtime.specification.run import SPECIFICATION_FILE
from heterps_runtime.specification.trust import agreed_program


class Whereabouts(NamedTuple):
    """Where the devices of a run are, at first.

    Attributes:
        absent: Those that are nowhere yet.
        others: The other hosts, on host 0 of several; they call
            `heterps_runtime.fleet.agent.serve_host`. All devices of a host that is lost are lost.
    """

    absent: Sequence[str] = ()
    others: OtherHosts | None = None


def run_elastic(
    problem: Problem,
    plan: Plan,
    settings: RunSettings,
    replanner: Replanner,
    *,
    events: Sequence[RunEvent] = (),
    where: Whereabouts = Whereabouts(),
    hooks: RunHooks | None = None,
    trust_code: bool = False,
) -> RunResult:
    """Trains until a step, whatever happens to the devices on the way.

    Each device of the cluster has a process; those without a stage stand by. A device whose process
    ends, or shows no sign of life, is lost: the others go on under a new plan with the state that
    they hold, take what is missing from where it still is
    (`heterps_runtime.elastic.state_recovery`), and run the interrupted step again on the same
    samples.

    Args:
        problem: What the plan was made for, with all devices that may ever take part.
        plan: What runs first.
        settings: How. Without a checkpoint folder, a lost device that held the only copy of a layer
            takes the run back to its beginning. The port is not used.
        replanner: Finds the plan of a changed set of devices.
        events: Faults and joins that are injected, and devices that get slower.
        where: By default all devices are there, on this host.
        hooks: Who is called while the run goes on; by default remarks are warnings.
        trust_code: Code that the profile or the settings name may run.

    Raises:
        PlanMismatchError: As `run_plan` does.
        NotEnoughDevicesError: The devices that are left are too few for any plan.
        HeterpsError: As `run_plan` does, or `replanner` finds no plan.
    """
    hooks, (absent, others) = hooks or RunHooks(), where
    if trust_code:
        trust_source(problem.profile.source)
    program = agreed_program(settings, trust_code=trust_code)
    check_runnable(problem, plan, events)
    check_importable(problem)
    _check(problem, plan, settings, events, absent)
    schedule = build_schedule(problem, plan)
    specification = begin(
        problem,
        plan,
        schedule,
        settings,
        devices=[each.name for each in problem.cluster.devices if each.name in plan.devices],
        events=events,
        is_online=hooks.controller is not None,
        on_message=hooks.on_message,
    ).changed(program=program)
    with ExitStack() as stack:
        directory = working_directory(settings, stack)
        run = ElasticState(problem, specification, directory, hooks)
        run.predict(problem, plan, schedule)
        specification.to_json_file(directory / SPECIFICATION_FILE)
        names = [device.name for device in problem.cluster.devices]
        hosts = None if others is None else others.hosts
        devices = [tuple(names)] if hosts is None else hosts.devices(problem.cluster, names)
        libraries = modules_of(problem.profile.source)
        own = LocalPlace(devices[0], directory, settings.num_threads, hosts, libraries)
        with Processes([own]) as processes:
            supervisor = Supervisor(
                run,
                processes,
                replanner,
                limits=with_stall_s(settings.elastic, run.predicted_step_time_s),
                events=[event for event in events if event.slow is None],
                absent=absent,
            )
            if others is not None:
                others.open_store(supervisor.port)
                processes.places += others.places(
                    specification, devices, directory, settings.num_threads
                )
            supervisor.lead(settings.timeout_s)

        def reference() -> None:
            environment = worker_environment(settings.num_threads)
            with Template(WORKER_MODULE, environment, directory / LOG_FILE) as template:
                run_reference(template, directory, environment, settings.timeout_s)

        return run.finished(reference if settings.verify else None)


def _check(
    problem: Problem,
    plan: Plan,
    settings: RunSettings,
    events: Sequence[RunEvent],
    absent: Sequence[str],
) -> None:
    """Refuses what makes no sense.

    Raises:
        HeterpsError: A name is no device of the cluster, the plan needs a device that is absent, or
            another engine was asked for.
    """
    known = [device.name for device in problem.cluster.devices]
    for name in (*absent, *(event.subject for event in events if event.slow is None)):
        if name not in known:
            raise HeterpsError(f"no device {name!r} in this cluster; it has {', '.join(known)}")
    missing = sorted(set(absent) & set(plan.devices))
    if missing:
        raise HeterpsError(f"the plan needs {', '.join(missing)}, which is absent at first")
    if settings.engine != "heterps":
        raise HeterpsError(f"--elastic: not with engine {settings.engine}")
