"""`heterps run`: execute a plan; predicted against measured."""

from __future__ import annotations

import math
import re
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from heterps.chrome_trace import write_chrome_trace
from heterps.console import answer, bytes_text, print_json, remarks, seconds_text
from heterps.plans import load_plan_and_problem
from heterps_configs.errors import HeterpsError
from heterps_configs.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.simulator import simulate
from heterps_runtime.checkpoint_files import CheckpointSettings
from heterps_runtime.host_group import HostGroup
from heterps_runtime.hosts import Hosts
from heterps_runtime.run import Controller, PlanUpdate, run_plan
from heterps_runtime.run_result import RunResult, StepProgress
from heterps_runtime.run_specification import Slowdown
from heterps_runtime.several_hosts import facts_of, join_run

if TYPE_CHECKING:
    from heterps.online import OnlineController
    from heterps_runtime.measurements import Measurements

_SLOW = re.compile(r"(?P<device>[^=]+)=(?P<factor>[0-9.]+)@(?P<step>[0-9]+)")


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
    learning_rate: float | None,
    port: int | None,
    run_directory: Path,
    trace: Path | None,
    seed: int,
    as_json: bool,
    checkpoint: CheckpointSettings | None = None,
    resume: bool = False,
    weights: Path | None = None,
    hosts: Hosts | None = None,
) -> None:
    """Runs, prints, and says where the logs are. Of several hosts, host 0 prints."""
    if learning_rate is not None and not 0 < learning_rate < math.inf:
        raise HeterpsError(f"--learning-rate {learning_rate}: must be above 0")
    if trace is not None and online:
        raise HeterpsError("--trace: not with --online, under which the plan may change")
    slowdowns = [parse_slowdown(text) for text in slow]
    if hosts is not None and port is not None:
        raise HeterpsError("--port: not with --nodes, whose --rendezvous names the port")
    with ExitStack() as stack:
        # First of all, so that an error of any host reaches all of them.
        group = None if hosts is None else stack.enter_context(HostGroup(hosts))
        plan, problem = load_plan_and_problem(plan_file, model, cluster)
        if group is not None:
            options = {
                "--steps": steps, "--seed": seed, "--learning-rate": learning_rate,
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
            watcher = make_controller(problem, plan, policy, fine_tune_s=fine_tune_s, seed=seed)
        result = run_with_progress(
            problem,
            plan,
            steps=steps,
            seed=seed,
            verify=verify,
            slowdowns=slowdowns,
            watcher=watcher,
            learning_rate=learning_rate,
            port=port,
            run_directory=run_directory,
            checkpoint=checkpoint,
            resume=resume,
            weights=weights,
            hosts=group,
        )
    if trace is not None:
        write_timelines(result, problem, plan, trace)
        remarks.print(f"trace written to {trace} (open it at ui.perfetto.dev)")
    if as_json:
        print_json(result_mapping(result, watcher))
    else:
        print_result(result)
        remarks.print(f"logs and measurements: {run_directory}")


def _join(group: HostGroup, run_directory: Path) -> None:
    """The part of a host that is not host 0; `run_directory` may be shared with the others."""
    directory = run_directory / f"host-{group.hosts.rank}"
    devices = join_run(group, run_directory=directory)
    remarks.print(
        f"host {group.hosts.rank} ran {', '.join(devices)}; host 0 has the results; "
        f"logs: {directory}",
        soft_wrap=True,
    )


def write_timelines(result: RunResult, problem: Problem, plan: Plan, path: Path) -> None:
    """Writes the last step as measured beside the step as predicted, as one Chrome trace."""
    predicted = simulate(problem, plan)
    measured = predicted.model_copy(
        update={
            "step_time_s": result.measured_step_time_s,
            "timeline": result.timeline,
            "memory_curves": (),
        }
    )
    write_chrome_trace({"predicted": predicted, "measured": measured}, path, problem, plan)


def checkpoint_settings(
    folder: Path | None, every: int | None, keep: int | None
) -> CheckpointSettings | None:
    """What --checkpoint, --checkpoint-every and --keep say together.

    Raises:
        HeterpsError: One of the others stands without --checkpoint.
    """
    given = {"every": every, "keep": keep}
    if folder is None:
        names = {"every": "--checkpoint-every", "keep": "--keep"}
        for field, value in given.items():
            if value is not None:
                raise HeterpsError(f"{names[field]} {value}: needs --checkpoint FOLDER")
        return None
    chosen = {field: value for field, value in given.items() if value is not None}
    return CheckpointSettings(folder=str(folder), **chosen)


def parse_slowdown(text: str) -> Slowdown:
    """Reads DEVICE=FACTOR@STEP.

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
            f"--slow {text!r}: expected DEVICE=FACTOR@STEP with a factor above 0, such as fast=3@10"
        ) from None
    return Slowdown(device=match["device"], factor=factor, from_step=step)


def make_controller(
    problem: Problem, plan: Plan, policy: str, *, fine_tune_s: float, seed: int
) -> OnlineController:
    """The controller of an online run, which starts from a shipped policy or a policy file."""
    from heterps.online import OnlineController
    from heterps_agents.policy import Policy

    return OnlineController(
        problem,
        plan,
        Policy.load(policy),
        fine_tune_s=fine_tune_s,
        seed=seed,
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
    **options: Any,
) -> RunResult:
    """`heterps_runtime.run.run_plan` with a progress bar on stderr."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[now]}"),
    )
    with Progress(*columns, console=remarks, transient=True) as progress:
        task = progress.add_task(
            title or f"run {plan.planner}", total=steps, now="starting workers"
        )

        def show(step: StepProgress) -> None:
            samples_per_s = problem.job.global_batch_size / step.step_time_s
            now = f"loss {step.loss:.4f}  {samples_per_s:.3g} samples/s"
            progress.update(task, completed=step.step + 1, now=now)

        return run_plan(
            problem,
            plan,
            steps=steps,
            on_progress=show,
            on_message=lambda text: remarks.print(text, soft_wrap=True),
            controller=None if watcher is None else as_runtime_controller(watcher),
            **options,
        )


def result_mapping(result: RunResult, watcher: OnlineController | None) -> dict[str, Any]:
    """The JSON contract of `heterps run --json`."""
    data = result.model_dump(mode="json", exclude={"timeline"})
    if watcher is not None:
        data["decisions"] = [decision.to_mapping() for decision in watcher.decisions]
    return data


def print_result(result: RunResult) -> None:
    """Predicted against measured, the losses, the re-plans."""
    answer.print(
        f"step time   predicted {seconds_text(result.predicted_step_time_s)}, measured "
        f"{seconds_text(result.measured_step_time_s)} ({100 * result.relative_error:+.1f} %), "
        f"times of {result.times_of}"
    )
    answer.print(f"loss        {result.losses[0]:.6f} -> {result.losses[-1]:.6f}")
    if result.max_loss_difference is not None:
        answer.print(
            f"verify      largest loss difference to one process {result.max_loss_difference:.2e}"
        )
    if result.first_step:
        answer.print(f"resumed     behind step {result.first_step}")
    if result.checkpoint is not None:
        answer.print(f"checkpoint  {result.checkpoint}")
    _print_memory(result)
    for replan in result.replans:
        answer.print(
            f"re-placed   at step {replan.step} by {replan.planner}: predicted "
            f"{seconds_text(replan.predicted_step_time_s)}, measured "
            f"{seconds_text(replan.measured_step_time_s)}; moved "
            f"{replan.bytes_moved / 2**20:.1f} MiB in {seconds_text(replan.seconds)}"
        )
    overruns = sum(entry.num_overruns for entry in result.devices)
    if overruns:
        total = sum(entry.num_actions for entry in result.devices)
        answer.print(
            f"emulation   {overruns} of {total} actions took the host longer than emulated"
        )


def _print_memory(result: RunResult) -> None:
    """Predicted and measured peak of each device that was used."""
    for entry in result.devices:
        if entry.memory is not None and entry.predicted_memory_bytes is not None:
            predicted, measured = entry.predicted_memory_bytes, entry.memory.peak_bytes
            held = entry.memory.at_peak
            answer.print(
                f"memory      {entry.device}: predicted {bytes_text(predicted)}, measured "
                f"{bytes_text(measured)} ({100 * (predicted / measured - 1):+.1f} %), of which "
                f"activations {bytes_text(held.activations)}, messages {bytes_text(held.messages)}"
            )
