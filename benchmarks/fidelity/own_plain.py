"""Runs of two processes at the speed of this machine, with layers that were profiled alone.

Links, host times and how processes disturb each other are measured once, before the first run.
Every prediction is made before its run. Other work on the machine can slow the profile, the run, or
both: a second profile follows each run, and where the two disagree, the run is repeated with the
newer profile. Every attempt is in the row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import cache, partial

from benchmarks.fidelity.own_errors import relative_error
from benchmarks.fidelity.own_models import PLAIN, Case
from benchmarks.fidelity.own_plans import HOST, PLAIN_PLANS, job_of, plan_named
from benchmarks.fidelity.own_runs import Ticker, plain_steps, run_row
from benchmarks.shared.row_store import Row, RowStore
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Node
from heterps_configs.documents.job import Schedule
from heterps_configs.documents.model_profile import ModelProfile
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import simulate
from heterps_runtime.profiling.host_profiler import measure_host_times
from heterps_runtime.profiling.link_profiler import measure_host
from heterps_runtime.profiling.profiler import measure

HOST_TASK, STORED_HOST = "host", "plain, host"
NUM_PROCESSES = 2
GPIPE_PLAN = "equal cuts"
STEADY_DRIFT = 0.04  # between the profile before a run and the one after it
MAX_ATTEMPTS = 3
QUICK_MODELS = ("perceptron", "resnet")


def tasks(quick: bool, seed: int, store: RowStore) -> Iterator[tuple[str, Callable[[Ticker], Row]]]:
    """Names and what makes their rows; the first is of the host, which the others need."""
    yield HOST_TASK, _host_row
    for case in PLAIN:
        if quick and case.name not in QUICK_MODELS:
            continue
        for plan, schedule in _combinations(quick):
            name = f"{case.name}, {plan}, {schedule}"
            yield name, partial(_row, store, case, plan, schedule, seed)


def _combinations(quick: bool) -> Iterator[tuple[str, Schedule]]:
    for plan in PLAIN_PLANS[:1] if quick else PLAIN_PLANS:
        yield plan, "1f1b"
    if not quick:
        yield GPIPE_PLAN, "gpipe"


@cache
def _traced(case: Case) -> ModelProfile:
    return case.profile()


def _host_row(tick: Ticker) -> Row:
    """What `heterps profile --links` measures."""
    tick("links")
    found = measure_host(NUM_PROCESSES)
    link, reverse_link = found.node_links()
    tick("host times")
    host = measure_host_times(link, found.slowdown_together(), found.optimizer_slowdown_together())
    node = Node(
        name="host",
        devices=(DeviceGroup(name="d", type=HOST, count=NUM_PROCESSES),),
        link=link,
        reverse_link=reverse_link,
        host=host,
    )
    return {
        "part": "host",
        "node": node.model_dump(mode="json"),
        "together": {name: asdict(entry) for name, entry in found.together.items()},
        "steps_together": {name: asdict(entry) for name, entry in found.steps_together.items()},
        "link_fit_error": max(entry.residual for entry in found.links),
    }


def _row(
    store: RowStore, case: Case, plan_name: str, schedule: Schedule, seed: int, tick: Ticker
) -> Row:
    host = Node.model_validate(store[STORED_HOST]["node"])
    cluster = Cluster(name="two processes", nodes=(host,))
    attempts: list[Row] = []
    before = _problem(case, cluster, schedule, tick)
    while True:
        plan = plan_named(before, plan_name)
        predicted_s = simulate(before, plan).step_time_s
        tick("starting processes")
        run = run_row(before, plan, steps=plain_steps(predicted_s), seed=seed, tick=tick)
        after = _problem(case, cluster, schedule, tick)
        drift = relative_error(simulate(after, plan).step_time_s, predicted_s)
        attempts.append({"drift": drift, **run})
        if abs(drift) <= STEADY_DRIFT or len(attempts) == MAX_ATTEMPTS:
            break
        before = after
    return {
        "part": "plain",
        "model": case.name,
        "plan": plan_name,
        "schedule": schedule,
        "attempts": [{"drift": row["drift"], "error": row["error"]} for row in attempts],
        **steadiest(attempts),
    }


def steadiest(attempts: list[Row]) -> Row:
    """The attempt whose two profiles, one before and one after the run, agree best.

    The choice does not look at the error: it knows nothing of the run.
    """
    return min(attempts, key=lambda row: abs(row["drift"]))


def _problem(case: Case, cluster: Cluster, schedule: Schedule, tick: Ticker) -> Problem:
    tick("profile")
    profile = measure(_traced(case), HOST, (case.micro_batch_size,))
    return Problem(profile, cluster, job_of(case.micro_batch_size, schedule))
