"""Gradient sums beside or behind the passes: each plan gets what the simulator finds faster."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps import place
from heterps_agents.plan_choices.reduce_choice import choose_reduce
from heterps_configs.documents.cluster import Link
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import DocumentError
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.schedule.build import build_schedule
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.simulate import estimate
from tests.envs.small_problems import chain_problem

# Parameters of a layer; the gradients of the second are more than a bucket holds.
LARGE, ABOVE_A_BUCKET = 2**20, 2**23
FAR = Link(latency_s=1e-6, bandwidth_bytes_per_s=2**22)


def replicated(parameters: int, link: Link = FAR, layers: int = 4) -> tuple[Problem, Plan]:
    problem = chain_problem(
        [1.0] * layers,
        [2.0] * layers,
        num_micro_batches=4,
        parameters=[parameters] * layers,
        counts=(2,),
        link=link,
    )
    return problem, bind(problem, (PlacedStage(0, layers - 1, 0, 2),), planner="test", seed=0)


def with_job(problem: Problem, plan: Plan, overlaps_reduce: bool) -> tuple[Problem, Plan]:
    job = problem.job.changed(overlaps_reduce=overlaps_reduce)
    return replace(problem, job=job), plan.changed(job=job)


def test_long_sums_run_beside_passes() -> None:
    problem, plan = replicated(LARGE)
    chosen = choose_reduce(problem, plan)
    assert chosen.overlaps_reduce is True
    assert build_schedule(problem, chosen).overlaps_reduce
    assert chosen.predicted_step_time_s == estimate(problem, chosen).step_time_s


def test_many_sums_with_a_long_latency_become_one_behind_all_passes() -> None:
    link = Link(latency_s=20.0, bandwidth_bytes_per_s=1e12)
    problem, plan = replicated(ABOVE_A_BUCKET, link)
    chosen = choose_reduce(problem, plan)
    assert chosen.overlaps_reduce is False
    schedule = build_schedule(problem, chosen)
    assert not schedule.overlaps_reduce
    assert len(schedule.buckets) == 1
    early = plan.changed(overlaps_reduce=True)
    assert estimate(problem, chosen).step_time_s < estimate(problem, early).step_time_s


@pytest.mark.parametrize("overlaps_reduce", [True, False])
def test_what_the_job_fixes_stays(overlaps_reduce: bool) -> None:
    problem, plan = with_job(*replicated(LARGE), overlaps_reduce)
    assert choose_reduce(problem, plan) is plan
    assert build_schedule(problem, plan).overlaps_reduce == overlaps_reduce


def test_a_plan_without_sums_and_a_plan_that_has_chosen_stay_as_they_are() -> None:
    problem, plan = replicated(LARGE)
    alone = bind(problem, (PlacedStage(0, 3, 0),), planner="test", seed=0)
    assert choose_reduce(problem, alone) is alone
    chosen = plan.changed(overlaps_reduce=False)
    assert choose_reduce(problem, chosen) is chosen


@settings(max_examples=25, deadline=None)
@given(
    parameters=st.integers(1, 2**21),
    latency_s=st.floats(0, 3),
    bandwidth=st.floats(2**18, 2**26),
    layers=st.integers(2, 6),
)
def test_no_plan_becomes_slower(
    parameters: int, latency_s: float, bandwidth: float, layers: int
) -> None:
    link = Link(latency_s=latency_s, bandwidth_bytes_per_s=bandwidth)
    problem, plan = replicated(parameters, link, layers)
    fixed = [estimate(*with_job(problem, plan, value)).step_time_s for value in (True, False)]
    found = estimate(problem, choose_reduce(problem, plan)).step_time_s
    assert found <= min(fixed) * (1 + 1.01e-4)


def test_planned_plans_have_made_the_choice_and_keep_it_in_their_file() -> None:
    problem, _ = replicated(LARGE)
    plan = place(problem, "even").plan
    assert plan.overlaps_reduce is not None or len(plan.devices) == len(plan.stages)
    assert Plan.from_mapping(plan.to_mapping()) == plan


def test_a_plan_that_contradicts_its_job_is_refused() -> None:
    _, plan = with_job(*replicated(LARGE), overlaps_reduce=True)
    reason = "overlaps_reduce: False in the plan, and True in its job"
    with pytest.raises(DocumentError, match=reason):
        Plan.from_mapping({**plan.to_mapping(), "overlaps_reduce": False})
    with pytest.raises(DocumentError, match=reason):
        plan.changed(overlaps_reduce=False)


def test_documents_of_before_overlap_as_they_did() -> None:
    _, plan = replicated(LARGE)
    assert "overlaps_reduce" not in plan.to_mapping()
    assert plan.sums_overlap
    before = {**plan.to_mapping(), "job": {**plan.job.to_mapping(), "overlaps_reduce": False}}
    assert not Plan.from_mapping(before).sums_overlap
