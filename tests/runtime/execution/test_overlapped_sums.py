"""Sums beside the passes change nothing but time: equal losses, parameters, order of actions."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps_configs.documents.job import Schedule
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.schedule import reduce_buckets
from heterps_runtime.execution.local_run import LocalRun
from heterps_runtime.execution.overlapped_sums import OverlappedSums
from heterps_runtime.execution.program import Pass
from tests.runtime.parity_checks import SCHEDULES
from tests.runtime.random_plans import routes
from tests.runtime.small_runs import plan_of, problem_of


@pytest.fixture(autouse=True, scope="module")
def _a_bucket_for_each_layer() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reduce_buckets, "LEAST_BUCKET_BYTES", 1.0)
        patch.setattr(reduce_buckets, "BYTES_OVER_LATENCY", 0.0)
        yield


def _trained(problem: Problem, plan: Plan, overlaps_reduce: bool) -> tuple[list[float], LocalRun]:
    job = problem.job.changed(overlaps_reduce=overlaps_reduce)
    changed = Problem(profile=problem.profile, cluster=problem.cluster, job=job)
    run = LocalRun.of(changed, plan.changed(job=job))
    losses = [run.step() for _ in range(2)]
    for device, executor in run.executors.items():
        expected = [(a.kind, a.stage, a.micro_batch) for a in run.specification.actions[device]]
        assert [(r.kind, r.stage, r.micro_batch) for r in executor.records] == expected
    return losses, run


def _check(problem: Problem, plan: Plan) -> None:
    (early, overlapped), (late, blocking) = (_trained(problem, plan, on) for on in (True, False))
    assert early == pytest.approx(late, abs=1e-6)
    values: dict[str, torch.Tensor] = {}
    for device, owned in overlapped.owned.items():
        for name, parameter in owned.parameters.items():
            other = blocking.owned[device].parameters[name]
            torch.testing.assert_close(parameter, other, atol=1e-6, rtol=1e-6)
            # Bit by bit the same on all owners.
            assert torch.equal(parameter, values.setdefault(name, parameter))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
@given(data=st.data())
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_random_plans_train_with_overlapped_sums_as_without(
    schedule: Schedule, data: st.DataObject
) -> None:
    problem = problem_of("sequential", schedule=schedule, optimizer="sgd")
    found = data.draw(routes(problem.profile.num_layers, problem.job.num_micro_batches))
    _check(problem, plan_of(problem, *found))


@pytest.mark.slow
@pytest.mark.parametrize("schedule", SCHEDULES)
def test_tied_weights_and_depths_train_with_overlapped_sums_as_without(schedule: Schedule) -> None:
    problem = problem_of("gpt2", schedule=schedule, optimizer="sgd")
    stages = {"a": (0, 1, "d0"), "b": (2, -1, "d1"), "c": (0, -1, "d2"), "d": (0, -1, "d0")}
    _check(problem, plan_of(problem, stages, {("a", "b"): (0,), ("c",): (1, 2), ("d",): (3,)}))


def test_sums_start_within_the_last_backward_pass() -> None:
    problem = problem_of("sequential", optimizer="sgd")
    plan = plan_of(
        problem, {"a": (0, -1, "d0"), "b": (0, -1, "d1")}, {("a",): (0, 1), ("b",): (2, 3)}
    )
    run = LocalRun.of(problem, plan)
    started: list[int] = []
    start = OverlappedSums._start

    def note(sums: OverlappedSums, bucket: int) -> None:
        started.append(bucket)
        start(sums, bucket)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(OverlappedSums, "_start", note)
        run.step()
    num_passes = sum(isinstance(step, Pass) for step in run.executors["d0"].program)
    assert num_passes == 4
    # On each device once from within its last pass, and once more, in vain, by its action.
    assert len(started) == 4 * len(run.specification.buckets)
