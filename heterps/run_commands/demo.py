"""`heterps demo`: the whole loop on this machine, in minutes.

Profiles a real small Llama-type model, trains a placement policy, places the model on four emulated
devices, compares planners, runs the even plan and the policy's plan for real, slows one device down
in mid-run, adapts, and ends with one table of predicted and measured samples per second.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path

from rich.table import Table

from heterps.commands.train import load_config, train_with_progress
from heterps.comparisons.tables import print_comparison
from heterps.html_report.page import write_report
from heterps.online.controller import OnlineController
from heterps.planning.compare import compare
from heterps.reports.console import answer, percent_text, say_when_compiling
from heterps.reports.tensorboard_report import write_comparison
from heterps.run_commands.hooks import shown
from heterps.run_commands.profile import measure_with_progress
from heterps_agents.learned.planner import PolicyPlanner
from heterps_agents.learned.policy import Policy
from heterps_configs.documents.job import Job
from heterps_configs.documents.plan import Plan
from heterps_configs.documents.run_events import RunEvent
from heterps_configs.documents.run_settings import OnlineSettings, RunSettings
from heterps_configs.documents.yaml_files import write_text
from heterps_configs.errors import HeterpsError
from heterps_configs.library import load_cluster, load_profile
from heterps_configs.outputs import folder_lock, try_outputs
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import simulate
from heterps_runtime.process.template_pool import keeping_templates
from heterps_runtime.results.result import RunResult
from heterps_runtime.run.run_plan import run_plan

MODEL, CLUSTER, HOST = "llama-tiny", "local-emulated", "host-cpu"
JOB = Job(global_batch_size=32, micro_batch_size=2, dtype="float32", optimizer="adamw")
PROFILE_FILE, RUN_ONLINE, REPORT_FILE = "profile.yaml", "run-online", "report.html"
TRAINED, COMPARED = "train", "compare"
PLAIN_STEPS = 6
# The slowed device, how much, and when; measurements come every few steps.
SLOWED, SLOWDOWN, SLOWED_AT = "fast", 3.0, 4
ONLINE_STEPS, MEASURE_EVERY, FINE_TUNE_S = 24, 3, 15.0


@dataclass(frozen=True)
class Speed:
    """Samples per second, as the simulator predicted and as the run measured."""

    predicted_samples_per_s: float
    measured_samples_per_s: float

    @classmethod
    def of(cls, predicted_step_s: float, measured_step_s: float) -> Speed:
        """From step times in seconds."""
        batch = JOB.global_batch_size
        return cls(batch / predicted_step_s, batch / measured_step_s)

    @property
    def error_text(self) -> str:
        """How far the prediction is above what was measured, or below it."""
        error = self.predicted_samples_per_s / self.measured_samples_per_s - 1
        return percent_text(error, 1, is_change=True)


def run_demo(folder: Path, *, train_s: float, seed: int) -> None:
    """Runs the demo and writes `summary.json`.

    Args:
        folder: Gets profile, policy, plans, runs, TensorBoard files, a page and the summary.
        train_s: Seconds of policy training.
        seed: Of training, planning, parameters and data.
    """
    try_outputs(folders={"--run-directory": folder})
    with folder_lock(folder), keeping_templates():
        _run(folder, train_s, seed)


def _run(folder: Path, train_s: float, seed: int) -> None:
    say_when_compiling()
    started = time.perf_counter()
    problem = _profiled_problem(folder)
    policy = _trained_policy(folder, train_s, seed)
    plans, gap = _planned(folder, problem, policy, seed)
    speeds = {
        name: _run_plain(folder, problem, plans[name], name, seed) for name in ("even", "policy")
    }
    speeds |= _run_drifting(folder, problem, plans["policy"], policy, seed)
    seconds = time.perf_counter() - started
    summary = {
        **{name: vars(speed) for name, speed in speeds.items()},
        "gap_to_exact": gap,
        "seconds": seconds,
    }
    write_text(folder / "summary.json", json.dumps(summary, indent=2) + "\n")
    answer.print(_table(speeds))
    answer.print(
        "The four devices are emulated on this machine: real computation, then sleep until the "
        "emulated time. These are no hardware results."
    )
    write_report(folder / RUN_ONLINE, folder / REPORT_FILE)
    answer.print(f"the last run as a page: {folder / REPORT_FILE}")
    answer.print(f"summary: {folder / 'summary.json'} ({seconds:.0f} s in all)")
    # Its table HParams has the columns of one kind of run.
    answer.print(
        f"TensorBoard: tensorboard --logdir {folder / TRAINED}, or of the planners "
        f"{folder / COMPARED}"
    )


def _heading(text: str) -> None:
    answer.print(f"\n{text}", style="bold")


def _profiled_problem(folder: Path) -> Problem:
    _heading(f"1. Profile {MODEL} on this machine")
    profile = measure_with_progress(
        load_profile(MODEL).changed(measurements=()),
        device="cpu",
        device_type=HOST,
        micro_batch_sizes=(JOB.micro_batch_size,),
        dtype=JOB.dtype,
    )
    path = folder / PROFILE_FILE
    profile.to_file(path)
    problem = Problem(profile, load_cluster(CLUSTER), JOB, str(path), CLUSTER)
    newest = profile.measurements[-1]
    total_s = sum(newest.forward_s) + sum(newest.backward_s)
    answer.print(
        f"{profile.num_layers} layers, {profile.num_parameters:,} parameters; a micro-batch of "
        f"{JOB.micro_batch_size} takes this machine {1e3 * total_s:.1f} ms ({path})"
    )
    return problem


def _trained_policy(folder: Path, train_s: float, seed: int) -> Policy:
    _heading(f"2. Train a placement policy for {train_s:.0f} s")
    config = load_config("quick").changed(budget_s=train_s, total_steps=None, seed=seed)
    run = folder / TRAINED / time.strftime("%Y%m%d-%H%M%S")
    result = train_with_progress(config, run, command=f"heterps demo --train-seconds {train_s:g}")
    if result.interrupt is not None:
        raise result.interrupt
    gap = result.scores["greedy_gap_median"]
    answer.print(
        f"{result.passes} passes of imitation, {result.steps:,} environment steps; on unseen "
        f"problems the greedy policy is {percent_text(gap, 2)} above the optimum in the median"
    )
    assert isinstance(result.policy, Policy), "the config quick is one for chains"
    return result.policy


def _planned(
    folder: Path, problem: Problem, policy: Policy, seed: int
) -> tuple[dict[str, Plan], float]:
    _heading(f"3. Place {MODEL} on {CLUSTER}, and compare planners")
    policy.save(folder / "policy.npz")
    trained = PolicyPlanner(seed=seed, policy=policy)
    others = ("exact", "annealing", "greedy", "speed-proportional", "even")
    comparison = compare(problem, (trained, *others), seed=seed)
    print_comparison(comparison)
    write_comparison(comparison, folder / COMPARED)
    plans = {
        "even": comparison.results["even"].plan,
        "policy": comparison.results[trained.name].plan,
    }
    for name, plan in plans.items():
        _write_plan(folder, plan, name)
    gap = next(row.closed_form_gap for row in comparison.rows if row.planner == trained.name)
    assert gap is not None
    # Else it is odd that `exact` is not the first of the table.
    answer.print(
        "exact finds the optimum of the closed form; the simulator sees more, and may prefer "
        f"another plan. By the closed form the policy's plan is {percent_text(gap, 2)} above it."
    )
    return plans, gap


def _write_plan(folder: Path, plan: Plan, name: str) -> None:
    """Writes a plan that is found to be one of the profile beside it, from wherever it is read."""
    plan.changed(model_reference=PROFILE_FILE).to_file(folder / f"plan-{name}.yaml")


def _run_plain(folder: Path, problem: Problem, plan: Plan, name: str, seed: int) -> Speed:
    _heading(f"{'4' if name == 'even' else '5'}. Run the {name} plan: {PLAIN_STEPS} steps")
    settings = RunSettings(steps=PLAIN_STEPS, seed=seed, run_directory=str(folder / f"run-{name}"))
    with shown(problem, settings.steps, f"run {name}") as hooks:
        result = run_plan(problem, plan, settings, hooks=hooks)
    speed = Speed.of(result.predicted_step_time_s, result.measured_step_time_s)
    answer.print(_speed_line(speed))
    return speed


def _run_drifting(
    folder: Path, problem: Problem, plan: Plan, policy: Policy, seed: int
) -> dict[str, Speed]:
    _heading(
        f"6. Run the policy's plan again; from step {SLOWED_AT + 1} on the device "
        f"{SLOWED!r} is {SLOWDOWN:g} x slower; adapt online"
    )
    settings = RunSettings(
        steps=ONLINE_STEPS,
        seed=seed,
        run_directory=str(folder / RUN_ONLINE),
        online=OnlineSettings(fine_tune_s=FINE_TUNE_S, measure_every=MEASURE_EVERY),
    )
    drift = RunEvent(step=SLOWED_AT, slow=SLOWED, factor=SLOWDOWN)
    with (
        OnlineController(
            problem, plan, policy, settings.online,
            seed=seed, on_message=lambda text: answer.print(f"  {text}"),
        ) as watcher,
        shown(problem, settings.steps, "run online", watcher=watcher) as hooks,
    ):  # fmt: skip
        result = run_plan(problem, plan, settings, events=[drift], hooks=hooks)
    _write_plan(folder, watcher.plan, "adapted")
    return _drifted_speeds(problem, plan, watcher, result)


def _drifted_speeds(
    problem: Problem, plan: Plan, watcher: OnlineController, result: RunResult
) -> dict[str, Speed]:
    """Speeds under the old plan on the slow device, and under the plan that replaced it."""
    if not result.replans:
        raise HeterpsError(
            "the run was not re-placed: the drift was not seen before the last step; "
            "the machine may be too busy for the emulation"
        )
    first, last = result.replans[0], result.replans[-1]
    stale_s = result.median_step_time_s(SLOWED_AT, first.step - 1)
    slowed = simulate(problem, plan, slowdown={SLOWED: SLOWDOWN})
    adapted = Speed.of(last.predicted_step_time_s, last.measured_step_time_s)
    return {"drifted": Speed.of(slowed.step_time_s, stale_s), "adapted": adapted}


def _speed_line(speed: Speed) -> str:
    return (
        f"predicted {speed.predicted_samples_per_s:.2f} samples/s, "
        f"measured {speed.measured_samples_per_s:.2f} ({speed.error_text})"
    )


def _table(speeds: dict[str, Speed]) -> Table:
    table = Table(title="Samples per second", title_justify="left", box=None)
    for heading in ("plan", "predicted", "measured", "error", "against"):
        table.add_column(heading, justify="left" if heading in {"plan", "against"} else "right")
    labels = {
        "even": ("even split", None),
        "policy": ("policy", "even"),
        "drifted": ("after the drift", "policy"),
        "adapted": ("adapted", "drifted"),
    }
    for name, (label, other) in labels.items():
        speed = speeds[name]
        ratio = ""
        if other is not None:
            factor = speed.measured_samples_per_s / speeds[other].measured_samples_per_s
            ratio = f"{factor:.2f} x {labels[other][0]}"
        table.add_row(
            label,
            f"{speed.predicted_samples_per_s:.2f}",
            f"{speed.measured_samples_per_s:.2f}",
            speed.error_text,
            ratio,
        )
    return table
