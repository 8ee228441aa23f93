"""A whole run as it was asked for: checks, trust, hosts, the run itself, its files."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from heterps.planning.plans import load_plan_and_problem
from heterps.planning.trust import ask_for_program, ask_for_trust
from heterps.reports.console import remarks, say_when_compiling
from heterps.reports.run_tensorboard import RunBoard
from heterps.reports.run_trace import TRACE_SUFFIXES, TraceFiles, write_timelines
from heterps.run_commands.elastic import run_with_recovery
from heterps.run_commands.event_files import check_events
from heterps.run_commands.failures import (
    ON_EVERY_HOST,
    failures_explained,
    later_start_explained,
    to_go_on_from,
)
from heterps.run_commands.hooks import make_controller, shown
from heterps.run_commands.run_request import RunRequest
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import CheckpointSettings
from heterps_configs.outputs import folder_lock, try_outputs
from heterps_envs.problem import Problem
from heterps_runtime.fleet.agent import LostHostError, serve_host
from heterps_runtime.fleet.others import OtherHosts
from heterps_runtime.results.result import RunResult, VerificationInterrupt
from heterps_runtime.run.host_group import HostGroup
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.run.several_hosts import facts_of, join_run
from heterps_runtime.run.starting_point import check_resumable
from heterps_runtime.specification.hosts import Hosts
from heterps_runtime.specification.machine import check_machine

if TYPE_CHECKING:
    from heterps.online.controller import OnlineController


class RunOutcome(NamedTuple):
    """What a run left.

    Attributes:
        problem: What its plan answers.
        result: None on the hosts that are not host 0.
        watcher: The controller of an online run.
        interrupt: What ended the training in one process that verifies the run, if anything did.
    """

    problem: Problem
    result: RunResult | None = None
    watcher: OnlineController | None = None
    interrupt: KeyboardInterrupt | None = None


def conduct(request: RunRequest) -> RunOutcome:
    """Runs what was asked for, and shows it on stderr.

    Raises:
        HeterpsError: It cannot be done, or has failed; of a failed rank with its log.
        KeyboardInterrupt: The user ended it; its processes have ended.
    """
    request.check()
    files = None if request.trace is None else TraceFiles.of(request.trace)
    saving, run_directory = request.settings.saving, Path(request.settings.run_directory or "")
    _try_outputs(request, files)
    say_when_compiling()
    where = "" if request.hosts is None else ON_EVERY_HOST
    with ExitStack() as stack:
        # Around the hosts: what one of them says of its failure, each explains in the same way.
        stack.enter_context(later_start_explained(saving, where))
        # Before all else, so that an error of any host reaches all of them.
        group = None
        if request.hosts is not None and not request.is_elastic:
            group = stack.enter_context(HostGroup(request.hosts, _say))
        stack.enter_context(failures_explained(_own_directory(request), saving))
        plan, problem = request.at_hand or load_plan_and_problem(
            request.plan_file, request.model, request.cluster
        )
        check_events(
            request.event_files,
            problem,
            plan,
            request.settings.steps,
            is_elastic=request.is_elastic,
        )
        request.check_losses(problem)
        what = f"{request.plan_file}: this plan"
        ask_for_trust(problem.profile.source, what, is_trusted=request.trusts_code, say=_say)
        ask_for_program(request.settings.program, is_trusted=request.trusts_program, say=_say)
        check_machine(problem, plan, _own_devices(request, problem, plan), request.settings.device)
        if request.hosts is None or request.hosts.rank == 0:
            check_resumable(request.settings, problem, plan)
        facts = facts_of(problem, plan, request.facts())
        if group is not None:
            group.agree(facts)
        for folder in dict.fromkeys(path.resolve() for path in _locked_folders(request)):
            stack.enter_context(folder_lock(folder))
        if group is not None:
            if group.hosts.rank > 0:
                _join(group, run_directory)
                return RunOutcome(problem)
        elif request.hosts is not None and request.hosts.rank > 0:
            _serve(request.hosts, facts, run_directory, saving)
            return RunOutcome(problem)
        if request.hosts is not None and saving is not None:
            remarks.print("--checkpoint: the folder must be one that all hosts share")
        others = None
        if request.hosts is not None and request.is_elastic:
            others = stack.enter_context(OtherHosts(request.hosts, facts, _say))
        watcher = None
        if request.is_online:
            watcher = stack.enter_context(make_controller(problem, plan, request.settings))
        result, interrupt = _carried_out(request, problem, plan, watcher, group, others)
    return RunOutcome(problem, result, watcher, interrupt)


def write_trace(request: RunRequest, outcome: RunOutcome) -> None:
    """Writes the timelines that were asked for.

    Raises:
        HeterpsError: They cannot be written.
    """
    if request.trace is None or outcome.result is None:
        return
    files = TraceFiles.of(request.trace)
    write_timelines(outcome.result, outcome.problem, files)
    remarks.print(
        f"timelines written to {files.trace} (open it at ui.perfetto.dev) and {files.figure}",
        soft_wrap=True,
    )


def _own_devices(request: RunRequest, problem: Problem, plan: Plan) -> Sequence[str]:
    """Devices that are started here."""
    if request.hosts is None:
        return plan.devices
    return request.hosts.devices(problem.cluster, plan.devices)[request.hosts.rank]


def _try_outputs(request: RunRequest, files: TraceFiles | None) -> None:
    other = None if files is None else next(each for each in files if each != request.trace)
    saving = request.settings.saving
    try_outputs(
        {"--trace": (request.trace, TRACE_SUFFIXES), "--trace, beside it:": (other, ())},
        {
            "--run-directory": Path(request.settings.run_directory or "."),
            "--checkpoint": None if saving is None else Path(saving.folder),
            "--tensorboard": request.tensorboard,
        },
    )


def _locked_folders(request: RunRequest) -> list[Path]:
    """What no other run may write meanwhile; of hosts that share folders, each has its own."""
    folder, saving = _own_directory(request), request.settings.saving
    if request.hosts is not None and request.hosts.rank > 0:
        return [folder]
    folders = [folder, *([] if saving is None else [Path(saving.folder)])]
    return [*folders, *([] if request.tensorboard is None else [request.tensorboard])]


def _own_directory(request: RunRequest) -> Path:
    """The run directory of this host."""
    folder = Path(request.settings.run_directory or ".")
    rank = 0 if request.hosts is None else request.hosts.rank
    return folder if rank == 0 else _directory_of_host(folder, rank)


def _directory_of_host(run_directory: Path, rank: int) -> Path:
    return run_directory / f"host-{rank}"


def _carried_out(
    request: RunRequest,
    problem: Problem,
    plan: Plan,
    watcher: OnlineController | None,
    group: HostGroup | None,
    others: OtherHosts | None,
) -> tuple[RunResult, KeyboardInterrupt | None]:
    """The run itself, shown on stderr and in TensorBoard; what ended its verification, if any."""
    settings, title, board = request.settings, f"run {plan.planner}", None
    interrupt: KeyboardInterrupt | None = None
    with ExitStack() as stack:
        if request.tensorboard is not None:
            board = stack.enter_context(
                RunBoard(request.tensorboard, problem, plan, is_resumed=settings.resume)
            )
            settings = settings.changed(measures_links=True)
            remarks.print(
                f"TensorBoard: tensorboard --logdir {request.tensorboard}", soft_wrap=True
            )
        with shown(
            problem, settings.steps, title, watcher=watcher, board=board, is_quiet=request.as_json
        ) as hooks:
            try:
                if request.is_elastic:
                    result = run_with_recovery(
                        problem, plan, settings, hooks,
                        events=request.events, spot=request.spot, watcher=watcher, others=others,
                    )  # fmt: skip
                else:
                    result = run_plan(
                        problem, plan, settings, events=request.events, hooks=hooks, hosts=group
                    )
            except VerificationInterrupt as stop:
                result, interrupt = stop.result, stop.cause
        if request.spot is not None:
            tolerated = settings.elastic.tolerated_losses
            request.spot.finish(result, problem, plan, settings.saving, tolerated)
        if board is not None:
            board.finish(result)
        return result, interrupt


def _say(text: str) -> None:
    remarks.print(text, soft_wrap=True)


def _join(group: HostGroup, run_directory: Path) -> None:
    """The part of a host that is not host 0; `run_directory` may be shared with the others."""
    directory = _directory_of_host(run_directory, group.hosts.rank)
    devices = join_run(group, run_directory=directory)
    remarks.print(
        f"host {group.hosts.rank} ran {', '.join(devices)}; host 0 has the results; "
        f"logs: {directory}",
        soft_wrap=True,
    )


def _serve(
    hosts: Hosts, facts: dict[str, str], run_directory: Path, saving: CheckpointSettings | None
) -> None:
    """The part of a host that is not host 0 in an elastic run."""
    directory = _directory_of_host(run_directory, hosts.rank)
    try:
        serve_host(hosts, facts, directory, _say)
    except LostHostError as error:
        raise LostHostError(f"{error}; {to_go_on_from(saving, ON_EVERY_HOST)}") from None
    _say(f"the run is over; host 0 has the results; logs: {directory}")
