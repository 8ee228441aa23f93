"""Runs of two processes at the speed of this machine, with layers that were profiled alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cache, partial

from benchmarks.fidelity_sections.own_errors import relative_error
from benchmarks.fidelity_sections.own_models import PLAIN, Case
from benchmarks.fidelity_sections.own_plans import HOST, PLAIN_PLANS, job_of, plan_named
from benchmarks.fidelity_sections.own_runs import Ticker, plain_steps, run_row
from benchmarks.fidelity_sections.own_store import Row
from heterps_configs.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.job import Schedule
from heterps_configs.model_profile import ModelProfile
from heterps_envs.problem import Problem
from heterps_envs.simulator import simulate
from heterps_runtime.profiler import measure

GPIPE_PLAN = "equal cuts"
QUICK_MODELS = ("perceptron", "resnet")


def tasks(quick: bool, seed: int) -> Iterator[tuple[str, Callable[[Ticker], Row]]]:
    """Names and what makes their rows."""
    for case in PLAIN:
        if quick and case.name not in QUICK_MODELS:
            continue
        for plan, schedule in _combinations(quick):
            name = f"{case.name}, {plan}, {schedule}"
            yield name, partial(_row, case, plan, schedule, seed)


def _combinations(quick: bool) -> Iterator[tuple[str, Schedule]]:
    for plan in PLAIN_PLANS[:1] if quick else PLAIN_PLANS:
        yield plan, "1f1b"
    if not quick:
        yield GPIPE_PLAN, "gpipe"


@cache
def _traced(case: Case) -> ModelProfile:
    return case.profile()


@cache
def host_cluster() -> Cluster:
    """Two processes of this machine; their link and their host times are measured."""
    return Cluster(
        name="two processes",
        nodes=(
            Node(
                name="host",
                devices=(DeviceGroup(name="d", type=HOST, count=2),),
                link=Link(latency_s=5e-5, bandwidth_bytes_per_s=3e9),
            ),
        ),
    )


def _row(case: Case, plan_name: str, schedule: Schedule, seed: int, tick: Ticker) -> Row:
    tick("links")
    cluster = host_cluster()
    before = _problem(case, cluster, schedule, tick)
    plan = plan_named(before, plan_name)
    predicted_s = simulate(before, plan).step_time_s
    tick("starting processes")
    row = run_row(before, plan, steps=plain_steps(predicted_s), seed=seed, tick=tick)
    after = simulate(_problem(case, cluster, schedule, tick), plan).step_time_s
    return {
        "part": "plain",
        "model": case.name,
        "plan": plan_name,
        "schedule": schedule,
        "drift": relative_error(after, predicted_s),
        **row,
    }


def _problem(case: Case, cluster: Cluster, schedule: Schedule, tick: Ticker) -> Problem:
    tick("profile")
    profile = measure(_traced(case), HOST, (case.micro_batch_size,))
    return Problem(profile, cluster, job_of(case.micro_batch_size, schedule))
