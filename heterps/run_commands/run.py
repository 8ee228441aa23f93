"""`heterps run`: execute a plan; predicted against measured."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING

import typer

from heterps.online.drift_watch import DriftWatch
from heterps.planning.plans import load_plan_and_problem
from heterps.planning.trust import ask_for_program, ask_for_trust
from heterps.reports.console import answer, print_json, remarks, say_when_compiling
from heterps.reports.run_progress import RunProgress
from heterps.reports.run_report import evaluation_line, print_result, result_mapping
from heterps.reports.run_tensorboard import RunBoard
from heterps.reports.run_trace import TRACE_SUFFIXES, TraceFiles, write_timelines
from heterps.run_commands.elastic import run_with_recovery
from heterps.run_commands.run_request import RunRequest
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_settings import CheckpointSettings, RunSettings
from heterps_configs.errors import HeterpsError, NotEnoughDevicesError
from heterps_configs.outputs import folder_lock, try_outputs
from heterps_envs.problem import Problem
from heterps_runtime.fleet.agent import LostHostError, serve_host
from heterps_runtime.fleet.others import OtherHosts
from heterps_runtime.process.rank_log import rank_log_path
from heterps_runtime.run.host_group import HostGroup
from heterps_runtime.run.parent import Controller, PlanUpdate, RunHooks
from heterps_runtime.run.result import Evaluation, RunResult, StepProgress
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.run.several_hosts import facts_of, join_run
from heterps_runtime.run.starting_point import check_resumable
from heterps_runtime.specification.hosts import Hosts
from heterps_runtime.specification.machine import check_machine
from heterps_runtime.state.checkpoint_files import find_checkpoint

if TYPE_CHECKING:
    from heterps.online.controller import OnlineController
    from heterps_runtime.run.measurements import Measurements


def run_run(request: RunRequest) -> None:
    """Runs, prints, and says where the logs are. Of several hosts, host 0 prints."""
    request.check()
    files = None if request.trace is None else TraceFiles.of(request.trace)
    saving, run_directory = request.settings.saving, Path(request.settings.run_directory or "")
    _try_outputs(request, files)
    say_when_compiling()
    with ExitStack() as stack:
        stack.enter_context(_failures_explained(run_directory, saving))
        # Before all else, so that an error of any host reaches all of them.
        group = None
        if request.hosts is not None and not request.is_elastic:
            group = stack.enter_context(HostGroup(request.hosts, _say))
        plan, problem = load_plan_and_problem(request.plan_file, request.model, request.cluster)
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
                return
        elif request.hosts is not None and request.hosts.rank > 0:
            _serve(request.hosts, facts, run_directory, saving)
            return
        if request.hosts is not None and saving is not None:
            remarks.print("--checkpoint: the folder must be one that all hosts share")
        others = None
        if request.hosts is not None and request.is_elastic:
            others = stack.enter_context(OtherHosts(request.hosts, facts, _say))
        watcher = None
        if request.is_online:
            watcher = stack.enter_context(make_controller(problem, plan, request.settings))
        result = _carried_out(request, problem, plan, watcher, group, others)
    try:
        if files is not None:
            write_timelines(result, problem, files)
            remarks.print(
                f"timelines written to {files.trace} (open it at ui.perfetto.dev) and "
                f"{files.figure}",
                soft_wrap=True,
            )
    finally:
        _print(request, result, watcher)
        remarks.print(f"logs: {rank_log_path(run_directory, '*')}", soft_wrap=True)


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
    folder, saving = Path(request.settings.run_directory or "."), request.settings.saving
    rank = 0 if request.hosts is None else request.hosts.rank
    if rank > 0:
        return [_directory_of_host(folder, rank)]
    folders = [folder, *([] if saving is None else [Path(saving.folder)])]
    return [*folders, *([] if request.tensorboard is None else [request.tensorboard])]


def _directory_of_host(run_directory: Path, rank: int) -> Path:
    return run_directory / f"host-{rank}"


def _carried_out(
    request: RunRequest,
    problem: Problem,
    plan: Plan,
    watcher: OnlineController | None,
    group: HostGroup | None,
    others: OtherHosts | None,
) -> RunResult:
    """The run itself, shown on stderr and in TensorBoard."""
    settings, title, board = request.settings, f"run {plan.planner}", None
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
            if request.is_elastic:
                result = run_with_recovery(
                    problem, plan, settings, hooks,
                    events=request.events, spot=request.spot, watcher=watcher, others=others,
                )  # fmt: skip
            else:
                result = run_plan(
                    problem, plan, settings, events=request.events, hooks=hooks, hosts=group
                )
        if board is not None:
            board.finish(result)
        return result


def _print(request: RunRequest, result: RunResult, watcher: OnlineController | None) -> None:
    """The answer, as JSON or for people."""
    spot = None if request.spot is None else request.spot.report
    if request.as_json:
        data = result_mapping(result, watcher)
        print_json(data if spot is None else {**data, "spot": spot.to_mapping()})
        return
    print_result(result)
    for line in () if spot is None else spot.lines():
        answer.print(line, soft_wrap=True)


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
        raise HeterpsError(f"{error}; {_to_go_on_from(saving, 'on every host')}") from None
    _say(f"the run is over; host 0 has the results; logs: {directory}")


class _Terminated(KeyboardInterrupt):
    """SIGTERM came."""


def _on_sigterm(number: int, frame: FrameType | None) -> None:
    raise _Terminated


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    before = signal.signal(signal.SIGTERM, _on_sigterm)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def _failures_explained(
    run_directory: Path, checkpoint: CheckpointSettings | None
) -> Iterator[None]:
    """Names a failed rank's log; after an interrupt, says what there is to go on from.

    SIGTERM, with which a batch system ends a job, ends the run as Ctrl-C does.
    """
    try:
        with _ended_by_sigterm():
            yield
    except KeyboardInterrupt as interrupt:
        remarks.print(_interrupted(checkpoint), soft_wrap=True)
        raise typer.Exit(143 if isinstance(interrupt, _Terminated) else 130) from None
    except NotEnoughDevicesError as error:
        raise NotEnoughDevicesError(f"{error}; {_to_go_on_from(checkpoint)}") from error
    except HeterpsError as error:
        rank = re.match(r"rank (\d+)\b", str(error))
        log = rank_log_path(run_directory, rank[1]) if rank else None
        if log is None or not log.exists():
            raise
        raise type(error)(f"{error}; its log: {log}") from error


def _interrupted(checkpoint: CheckpointSettings | None) -> str:
    return f"interrupted; {_to_go_on_from(checkpoint)}"


def _to_go_on_from(checkpoint: CheckpointSettings | None, where: str = "") -> str:
    if checkpoint is None:
        return "nothing was saved (--checkpoint FOLDER saves)"
    try:
        newest = find_checkpoint(Path(checkpoint.folder))
    except HeterpsError:
        return "there is no checkpoint yet"
    return f"{' '.join(['the same command', where]).strip()} with --resume goes on from {newest}"


def make_controller(problem: Problem, plan: Plan, settings: RunSettings) -> OnlineController:
    """The controller of an online run, which starts from a shipped policy or a policy file."""
    from heterps.online.controller import OnlineController
    from heterps_agents.learned.policy import Policy

    return OnlineController(
        problem,
        plan,
        Policy.load(settings.online.policy),
        settings.online,
        seed=settings.seed,
        on_message=lambda text: remarks.print(f"online: {text}"),
    )


def as_runtime_controller(watcher: OnlineController) -> Controller:
    """What the runtime calls with every measurement."""

    def observe(measurements: Measurements) -> PlanUpdate | None:
        plan = watcher.observe(
            measurements.step, measurements.remaining_steps, measurements.stage_measurements()
        )
        return None if plan is None else PlanUpdate(plan, watcher.problem)

    return observe


@contextmanager
def shown(
    problem: Problem,
    steps: int,
    title: str,
    *,
    watcher: OnlineController | None = None,
    board: RunBoard | None = None,
    is_quiet: bool = False,
) -> Iterator[RunHooks]:
    """Shows a run's progress and remarks on stderr, and tells those who follow its steps.

    Args:
        problem: What the plan was made for.
        steps: Optimizer steps, from the beginning of training.
        title: What the progress is called.
        watcher: The controller of an online run.
        board: Gets every step, too.
        is_quiet: Without a terminal no progress is shown.
    """
    batch = problem.job.global_batch_size
    watch = DriftWatch(lambda text: remarks.print(f"online: {text}", soft_wrap=True))
    with RunProgress(title, steps, batch, is_quiet=is_quiet) as bar:

        def show(step: StepProgress) -> None:
            events = []
            if watcher is not None:
                events = watch.take(step)
                watcher.on_drift(events)
            bar(step, watch.text)
            if board is not None:
                board(step)
                board.on_drift(events)

        def show_evaluation(found: Evaluation) -> None:
            remarks.print(evaluation_line(found), soft_wrap=True)
            if board is not None:
                board.on_evaluation(found)

        yield RunHooks(
            controller=None if watcher is None else as_runtime_controller(watcher),
            on_progress=show,
            on_message=lambda text: remarks.print(text, soft_wrap=True),
            on_evaluation=show_evaluation,
        )
