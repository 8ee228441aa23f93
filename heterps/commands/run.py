"""`heterps run`: execute a plan; predicted against measured."""

from __future__ import annotations

import math
import re
import signal
import warnings
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any, cast, get_args

import typer

from heterps.commands.elastic import ElasticOptions, run_with_recovery
from heterps.online.drift_watch import DriftWatch
from heterps.planning.plans import load_plan_and_problem
from heterps.reports.console import answer, print_json, remarks
from heterps.reports.run_progress import RunProgress
from heterps.reports.run_report import print_result, result_mapping
from heterps.reports.run_tensorboard import RunBoard
from heterps.reports.run_trace import TraceFiles, write_timelines
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, NotEnoughDevicesError
from heterps_envs.problem import Problem
from heterps_runtime.process.rank_log import rank_log_path
from heterps_runtime.run.host_group import HostGroup
from heterps_runtime.run.parent import Controller, PlanUpdate
from heterps_runtime.run.result import RunResult, StepProgress
from heterps_runtime.run.run_plan import run_plan
from heterps_runtime.run.several_hosts import facts_of, join_run
from heterps_runtime.specification.checkpoint_settings import CheckpointSettings
from heterps_runtime.specification.hosts import Hosts
from heterps_runtime.specification.run import Engine, Slowdown
from heterps_runtime.state.checkpoint_files import find_checkpoint

if TYPE_CHECKING:
    from heterps.online.controller import OnlineController
    from heterps_runtime.run.measurements import Measurements

_SLOW = re.compile(r"(?P<what>[^=]+)=(?P<factor>[0-9.]+)@(?P<step>[0-9]+)")


def run_run(
    plan_file: Path,
    *,
    steps: int,
    model: str | None,
    cluster: str | None,
    verify: bool,
    online: bool,
    slow: list[str],
    policy: str,
    fine_tune_s: float,
    horizon: int | None = None,
    learning_rate: float | None,
    max_gradient_norm: float | None = None,
    port: int | None,
    run_directory: Path,
    trace: Path | None,
    seed: int,
    as_json: bool,
    tensorboard: Path | None = None,
    checkpoint: CheckpointSettings | None = None,
    resume: bool = False,
    weights: Path | None = None,
    hosts: Hosts | None = None,
    engine: str = "heterps",
    elastic: ElasticOptions | None = None,
) -> None:
    """Runs, prints, and says where the logs are. Of several hosts, host 0 prints."""
    if learning_rate is not None and not 0 < learning_rate < math.inf:
        raise HeterpsError(f"--learning-rate {learning_rate}: must be above 0")
    if max_gradient_norm is not None and not 0 < max_gradient_norm < math.inf:
        raise HeterpsError(f"--max-gradient-norm {max_gradient_norm}: must be above 0")
    chosen_engine = _engine_named(engine, trace, hosts)
    if elastic is not None:
        _check_elastic(chosen_engine, hosts, port)
    files = None if trace is None else TraceFiles.of(trace)
    slowdowns = [parse_slowdown(text) for text in slow]
    if horizon is not None and not online:
        warnings.warn("--horizon is ignored without --online", stacklevel=1)
    if hosts is not None and port is not None:
        raise HeterpsError("--port: not with --nodes, whose --rendezvous names the port")
    with ExitStack() as stack:
        stack.enter_context(_failures_explained(run_directory, checkpoint))
        # Before all else, so that an error of any host reaches all of them.
        group = None if hosts is None else stack.enter_context(HostGroup(hosts))
        plan, problem = load_plan_and_problem(plan_file, model, cluster)
        if group is not None:
            options = {
                "--steps": steps, "--seed": seed, "--learning-rate": learning_rate,
                "--max-gradient-norm": max_gradient_norm,
                "--slow": slow, "--online": online, "--checkpoint": checkpoint,
                "--resume": resume, "--weights": weights,
            }  # fmt: skip
            group.agree(facts_of(problem, plan, options))
            if group.hosts.rank > 0:
                _join(group, run_directory)
                return
            if checkpoint is not None:
                remarks.print("--checkpoint: the folder must be one that all hosts share")
        watcher = None
        if online:
            controller = make_controller(
                problem, plan, policy, fine_tune_s=fine_tune_s, seed=seed, horizon_steps=horizon
            )
            watcher = stack.enter_context(controller)
        board = None
        if tensorboard is not None:
            board = stack.enter_context(RunBoard(tensorboard, problem, plan, is_resumed=resume))
            remarks.print(f"TensorBoard: tensorboard --logdir {tensorboard}", soft_wrap=True)
        result = run_with_progress(
            problem,
            plan,
            steps=steps,
            is_quiet=as_json,
            board=board,
            seed=seed,
            verify=verify,
            slowdowns=slowdowns,
            watcher=watcher,
            learning_rate=learning_rate,
            max_gradient_norm=max_gradient_norm,
            port=port,
            run_directory=run_directory,
            checkpoint=checkpoint,
            resume=resume,
            weights=weights,
            hosts=group,
            engine=chosen_engine,
            elastic=elastic,
        )
        if board is not None:
            board.finish(result)
    if files is not None:
        write_timelines(result, problem, files)
        remarks.print(
            f"timelines written to {files.trace} (open it at ui.perfetto.dev) and {files.figure}",
            soft_wrap=True,
        )
    spot = None if elastic is None or elastic.spot is None else elastic.spot.report
    if as_json:
        data = result_mapping(result, watcher)
        print_json(data if spot is None else {**data, "spot": spot.to_mapping()})
    else:
        print_result(result)
        for line in () if spot is None else spot.lines():
            answer.print(line, soft_wrap=True)
    remarks.print(f"logs: {rank_log_path(run_directory, '*')}", soft_wrap=True)


def _engine_named(name: str, trace: Path | None, hosts: Hosts | None) -> Engine:
    """The engine of `--engine`; refuses what torch's schedules cannot do."""
    if name not in get_args(Engine):
        raise HeterpsError(f"--engine {name}: allowed: {', '.join(get_args(Engine))}")
    if name == "torch" and trace is not None:
        raise HeterpsError("--trace: not with --engine torch, whose schedules measure no actions")
    if name == "torch" and hosts is not None:
        raise HeterpsError("--engine torch: not with --nodes; it runs on one host")
    return cast(Engine, name)


def _check_elastic(engine: Engine, hosts: Hosts | None, port: int | None) -> None:
    """Refuses what an elastic run cannot do.

    Raises:
        HeterpsError: It was asked for.
    """
    if hosts is not None:
        raise HeterpsError("--elastic: not with --nodes; its devices are those of one host")
    if engine != "heterps":
        raise HeterpsError(f"--elastic: not with --engine {engine}")
    if port is not None:
        warnings.warn("--port is ignored with --elastic, which takes a free one", stacklevel=1)


def _join(group: HostGroup, run_directory: Path) -> None:
    """The part of a host that is not host 0; `run_directory` may be shared with the others."""
    directory = run_directory / f"host-{group.hosts.rank}"
    devices = join_run(group, run_directory=directory)
    remarks.print(
        f"host {group.hosts.rank} ran {', '.join(devices)}; host 0 has the results; "
        f"logs: {directory}",
        soft_wrap=True,
    )


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
        raise type(error)(f"{error}\nits log: {log}") from error


def _interrupted(checkpoint: CheckpointSettings | None) -> str:
    return f"interrupted; {_to_go_on_from(checkpoint)}"


def _to_go_on_from(checkpoint: CheckpointSettings | None) -> str:
    if checkpoint is None:
        return "nothing was saved (--checkpoint FOLDER --checkpoint-every N saves)"
    try:
        newest = find_checkpoint(Path(checkpoint.folder))
    except HeterpsError:
        return "there is no checkpoint yet"
    return f"the same command with --resume goes on from {newest}"


def checkpoint_settings(
    folder: Path | None, every: int | None, keep: int | None, remote: str | None = None
) -> CheckpointSettings | None:
    """What --checkpoint, --checkpoint-every, --keep and --remote say together.

    Raises:
        HeterpsError: One of the others stands without --checkpoint, or that is no folder.
    """
    # A URL has lost one of its slashes by becoming a path.
    if folder is not None and re.match(r"[A-Za-z][A-Za-z0-9+.-]+:/", str(folder)):
        raise HeterpsError(
            f"--checkpoint {folder}: is a URL; name a folder of this host here, and give the URL "
            "with --remote"
        )
    given = {"every": every, "keep": keep, "remote": remote}
    if folder is None:
        names = {"every": "--checkpoint-every", "keep": "--keep", "remote": "--remote"}
        for field, value in given.items():
            if value is not None:
                raise HeterpsError(f"{names[field]} {value}: needs --checkpoint FOLDER")
        return None
    chosen = {field: value for field, value in given.items() if value is not None}
    return CheckpointSettings(folder=str(folder), **chosen)


def parse_slowdown(text: str) -> Slowdown:
    """Reads DEVICE=FACTOR@STEP or SOURCE->DESTINATION=FACTOR@STEP.

    Raises:
        HeterpsError: It has another form.
    """
    match = _SLOW.fullmatch(text)
    try:
        assert match is not None
        factor, step = float(match["factor"]), int(match["step"])
        assert factor > 0
    except (AssertionError, ValueError):
        raise HeterpsError(
            f"--slow {text!r}: expected DEVICE=FACTOR@STEP with a factor above 0, such as "
            "fast=3@10, or of a link, such as 'fast->medium=3@10'"
        ) from None
    source, arrow, destination = match["what"].partition("->")
    if arrow:
        return Slowdown(link=(source, destination), factor=factor, from_step=step)
    return Slowdown(device=source, factor=factor, from_step=step)


def make_controller(
    problem: Problem,
    plan: Plan,
    policy: str,
    *,
    fine_tune_s: float,
    seed: int,
    horizon_steps: int | None = None,
) -> OnlineController:
    """The controller of an online run, which starts from a shipped policy or a policy file."""
    from heterps.online.controller import OnlineController
    from heterps_agents.learned.policy import Policy

    return OnlineController(
        problem,
        plan,
        Policy.load(policy),
        fine_tune_s=fine_tune_s,
        seed=seed,
        horizon_steps=horizon_steps,
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


def run_with_progress(
    problem: Problem,
    plan: Plan,
    *,
    steps: int,
    title: str = "",
    watcher: OnlineController | None = None,
    is_quiet: bool = False,
    board: RunBoard | None = None,
    elastic: ElasticOptions | None = None,
    **options: Any,
) -> RunResult:
    """`heterps_runtime.run.run_plan.run_plan` with its progress on stderr.

    Args:
        problem: What the plan was made for.
        plan: What runs.
        steps: Optimizer steps, from the beginning of training.
        title: What the progress is called.
        watcher: The controller of an online run.
        is_quiet: Without a terminal nothing is shown.
        board: Gets every step, too.
        elastic: Of an elastic run.
        options: Of `run_plan`.
    """
    batch = problem.job.global_batch_size
    watch = DriftWatch(lambda text: remarks.print(f"online: {text}", soft_wrap=True))
    with RunProgress(title or f"run {plan.planner}", steps, batch, is_quiet=is_quiet) as bar:

        def show(step: StepProgress) -> None:
            events = []
            if watcher is not None:
                events = watch.take(step)
                watcher.on_drift(events)
            bar(step, watch.text)
            if board is not None:
                board(step)
                board.on_drift(events)

        common: dict[str, Any] = {
            "steps": steps,
            "on_progress": show,
            "on_message": lambda text: remarks.print(text, soft_wrap=True),
            "measure_links": board is not None,
            "controller": None if watcher is None else as_runtime_controller(watcher),
        }
        if elastic is None:
            return run_plan(problem, plan, **common, **options)
        for name in ("port", "hosts", "engine"):
            del options[name]
        return run_with_recovery(problem, plan, elastic, watcher=watcher, **common, **options)
