"""HeterPS on our problems: the least price under a floor, with the devices that there are."""

from __future__ import annotations

from collections import Counter

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_agents.systems.heterps.system import HeterpsPrice
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_envs.closed_form.placement import placement_of
from heterps_envs.simulator.simulate import estimate
from tests.uneven_problems import MakeProblem


def test_without_a_floor_the_cheapest_devices_are_taken(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=8.0, objective="price")
    plan, own_cost = HeterpsPrice().answer(problem, Budget())
    assert {name.partition("-")[0] for name in plan.devices} == {"small"}
    assert own_cost is not None
    step_s = own_cost.seconds * problem.job.num_micro_batches
    assert step_s == pytest.approx(plan.predicted_step_time_s, rel=0.1)


def test_a_floor_is_kept_at_a_price_not_far_from_the_least(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=8.0, objective="price", min_throughput_samples_per_s=10)
    plan = HeterpsPrice().plan(problem, Budget())
    shown = estimate(problem, plan)
    assert shown.throughput_samples_per_s >= 10
    exact = estimate(problem, planner_named("exact").plan(problem, Budget()))
    assert shown.price_usd_per_million_samples <= 1.6 * exact.price_usd_per_million_samples


def test_stages_of_one_class_share_the_devices_that_there_are(make_problem: MakeProblem) -> None:
    problem = make_problem(
        counts=(1, 3, 1), memory=8.0, objective="price", min_throughput_samples_per_s=10
    )
    plan = HeterpsPrice().plan(problem, Budget())
    used = Counter(name.partition("-")[0] for name in plan.devices)
    assert used["fast"] <= 1
    assert used["middle"] <= 3
    assert placement_of(problem, plan) is not None


def test_a_floor_that_the_devices_miss_is_refused_with_their_numbers(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(
        counts=(1, 3, 1), memory=8.0, objective="price", min_throughput_samples_per_s=50
    )
    with pytest.raises(InfeasibleError, match="there are 1 fast, 3 middle, 1 small"):
        HeterpsPrice().plan(problem, Budget())


def test_a_job_for_throughput_is_no_question_for_it(make_problem: MakeProblem) -> None:
    with pytest.raises(
        HeterpsError, match=r"^heterps-price: minimises the price of a sample; the job asks"
    ):
        HeterpsPrice().plan(make_problem(), Budget())


def test_memory_is_not_counted_and_the_simulator_says_what_is_missing(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(objective="price")
    with pytest.raises(InfeasibleError, match="its plan does not fit here: memory: small"):
        HeterpsPrice().plan(problem, Budget())
