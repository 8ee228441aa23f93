"""Runs on four emulated devices of four speeds, with links that take milliseconds."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from benchmarks.fidelity.own_models import EMULATED, Case
from benchmarks.fidelity.own_plans import HOST, emulated_cluster, job_of, plan_named
from benchmarks.fidelity.own_runs import EMULATED_STEPS, Ticker, run_row
from benchmarks.shared.row_store import Row
from heterps_configs.documents.job import Schedule
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.problem import Problem
from heterps_runtime.profiling.profiler import measure
from heterps_runtime.results.phases import WARM_UP_STEPS

PLANS = ("equal cuts", "unequal cuts", "replicas", "two depths")
# Plan and schedule of the runs that only some models make.
EXTRA_MODELS = ("llama", "click-through")
EXTRA: tuple[tuple[str, Schedule], ...] = (
    ("shared ends", "1f1b"),
    ("equal cuts", "zero-bubble"),
    ("unequal cuts", "zero-bubble"),
    ("two stages each", "interleaved"),
)
QUICK: tuple[tuple[str, Schedule], ...] = (("replicas", "1f1b"), ("equal cuts", "gpipe"))


def tasks(quick: bool, seed: int) -> Iterator[tuple[str, Callable[[Ticker], Row]]]:
    """Names and what makes their rows; each model is profiled once, before its first run."""
    profiles: dict[str, ModelProfile] = {}
    for plan, schedule in QUICK if quick else _combinations():
        for case in EMULATED[-1:] if quick else EMULATED:
            if (plan, schedule) in EXTRA and case.name not in EXTRA_MODELS:
                continue
            name = f"{case.name}, {plan}, {schedule}"
            yield name, partial(_row, profiles, case, plan, schedule, seed)


def _combinations() -> Iterator[tuple[str, Schedule]]:
    schedules: tuple[Schedule, ...] = ("1f1b", "gpipe")
    for plan in PLANS:
        for schedule in schedules:
            yield plan, schedule
    yield from EXTRA


def _row(
    profiles: dict[str, ModelProfile],
    case: Case,
    plan_name: str,
    schedule: Schedule,
    seed: int,
    tick: Ticker,
) -> Row:
    if case.name not in profiles:
        tick("profile")
        profiles[case.name] = measure(case.profile(), HOST, (case.micro_batch_size,))
    problem = Problem(
        profiles[case.name],
        emulated_cluster(case.slowdown),
        job_of(case.micro_batch_size, schedule),
    )
    tick("starting processes")
    return {
        "part": "emulated",
        "model": case.name,
        "plan": plan_name,
        "schedule": schedule,
        "slowdown": case.slowdown,
        **run_row(
            problem,
            plan_named(problem, plan_name),
            steps=WARM_UP_STEPS + EMULATED_STEPS,
            seed=seed,
            tick=tick,
        ),
    }
