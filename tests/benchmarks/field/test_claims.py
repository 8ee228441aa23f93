"""Claims of papers: what is said where the numbers here are other ones."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.field.baselines import (
    EVEN_ON_ALL,
    EVEN_REPLICAS,
    EvenOnAll,
    EvenReplicas,
    planner_or_baseline,
)
from benchmarks.field.claim_cases import ClaimCase, Nodes, problem_of
from benchmarks.field.claims import CLAIMS, Claim, claim_row, planners_of
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_names, system_names
from heterps_configs.errors import InfeasibleError
from heterps_envs.simulator.simulate import estimate

CASE = ClaimCase("bert-large", 64, (Nodes(1, {"A100-40G": 2}), Nodes(1, {"T4": 2})), "ethernet-25")
CLAIM = Claim("whale", ("even-replicas",), 1.2, 1.4, (CASE,), "abstract")


def answers(
    own: float | None, base: float | None, auto: float
) -> dict[tuple[str, str], dict[str, Any]]:
    found = {"whale": own, "even-replicas": base, "auto": auto}
    return {
        (CASE.name, name): {"step_time_s": step_s, "reason": "it does not fit"}
        for name, step_s in found.items()
    }


@pytest.mark.parametrize(
    ("own", "base", "auto", "found", "why"),
    [
        (1.0, 1.3, 1.0, "1.3 x", "as published"),
        (1.0, 2.0, 1.0, "2 x", "the baseline is further from the best here than in the paper"),
        (1.0, 1.1, 1.0, "1.1 x", "no plan known here is more than 1.1 x as fast as the baseline"),
        (2.0, 2.1, 1.0, "1.05 x", "its plan takes 2 x the best known here"),
        (None, 1.0, 1.0, "none", "no plan for bert-large: it does not fit"),
        (1.0, None, 1.0, "none", "no baseline has a plan for bert-large: it does not fit"),
    ],
)
def test_a_claim_says_what_was_found_and_why_it_differs(
    own: float | None, base: float | None, auto: float, found: str, why: str
) -> None:
    row = claim_row(CLAIM, answers(own, base, auto))
    assert (row["claimed"], row["found"], row["why"]) == ("1.2 to 1.4 x", found, why)


@pytest.mark.parametrize(("own", "why"), [(1.0, "as published"), (1.2, "its plan takes 1.2 x")])
def test_up_to_means_that_the_most_is_reached_somewhere(own: float, why: str) -> None:
    row = claim_row(CLAIM._replace(low=None), answers(own, 1.4, 1.0))
    assert row["claimed"] == "up to 1.4 x"
    assert row["why"].startswith(why)


def test_claims_ask_planners_that_are_there_and_cases_that_can_be_built() -> None:
    known = {*planner_names(), *system_names(), EVEN_REPLICAS, EVEN_ON_ALL}
    assert all(set(planners_of(claim)) <= known for claim in CLAIMS)
    by_name = {case.name: case for claim in CLAIMS for case in claim.cases}
    # Answers are kept by the name of the case.
    assert all(by_name[case.name] == case for claim in CLAIMS for case in claim.cases)
    for case in by_name.values():
        if case.model in ("bert-large", "resnet-152"):
            problem = problem_of(case)
            assert problem.job.global_batch_size == case.batch


def test_one_slow_device_is_a_type_of_its_own() -> None:
    problem = problem_of(CASE._replace(slower=5.0))
    slow, usual = problem.cluster.devices[:2]
    assert slow.type.peak("float16") == pytest.approx(usual.type.peak("float16") / 5)
    assert [device.type.name for device in problem.cluster.devices[1:]] == ["A100-40G", "T4", "T4"]


def test_even_replicas_stand_on_every_device_with_equal_shares() -> None:
    problem = problem_of(CASE._replace(model="vit-large"))
    planner = planner_or_baseline(EVEN_REPLICAS)
    assert isinstance(planner, EvenReplicas)
    plan = planner.plan(problem, Budget())
    assert set(plan.devices) == {device.name for device in problem.cluster.devices}
    assert len({len(stage.layers) for stage in plan.stages}) == 1
    assert plan.predicted_step_time_s == pytest.approx(estimate(problem, plan).step_time_s)


def test_even_plans_on_all_devices_leave_none_idle_and_are_no_slower_than_replicas() -> None:
    problem = problem_of(CASE._replace(model="vit-large"))
    plan = planner_or_baseline(EVEN_ON_ALL).plan(problem, Budget())
    assert set(plan.devices) == {device.name for device in problem.cluster.devices}
    replicas = EvenReplicas().plan(problem, Budget())
    assert (plan.predicted_step_time_s or 0.0) <= (replicas.predicted_step_time_s or 0.0)
    assert {each.shape.num_stages for each in EvenOnAll().shapes(problem)} > {1}


@pytest.mark.slow
def test_even_replicas_of_a_model_that_does_not_fit_are_refused() -> None:
    problem = problem_of(CASE._replace(model="llama-7b"))
    with pytest.raises(InfeasibleError, match="does not fit on every device"):
        EvenReplicas().plan(problem, Budget())
