"""Walks over devices that are far from one another."""

from __future__ import annotations

from collections import Counter

import pytest

from heterps.micro_batches.sizes import with_size
from heterps_agents.auto.device_walk import (
    best_of_each_size,
    best_over_devices,
    plan_as_clocked,
)
from heterps_agents.auto.others import WALKS, quick_plan, quick_ways
from heterps_agents.finishing.clock_walk import clocked_costs
from heterps_agents.interface.patient import has_far_devices
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.search.greedy import greedy_code
from heterps_envs.device_classes import MAX_CLASSES
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import FieldCase, field_problem
from heterps_envs.simulator.simulate import feasible_step_time_s, simulated_step_time_s

SEED = 2210


@pytest.fixture(scope="module")
def far() -> Problem:
    """Eight devices all over the world, each pair with a link of its own."""
    return with_size(field_problem(FieldCase("volunteers", 2), SEED), 1)


@pytest.fixture(scope="module")
def near() -> Problem:
    """Racks of two kinds."""
    return with_size(field_problem(FieldCase("two-type-racks", 1), SEED), 1)


def test_devices_are_far_where_a_message_takes_as_long_as_a_pass(
    far: Problem, near: Problem
) -> None:
    assert has_far_devices(far)
    assert not has_far_devices(near)
    job = far.job.changed(schedule="gpipe")
    assert not has_far_devices(Problem(far.profile, far.cluster, job))
    job = far.job.changed(objective="price")
    assert not has_far_devices(Problem(far.profile, far.cluster, job))


def test_every_device_is_a_class_of_its_own_unless_there_are_too_many(far: Problem) -> None:
    view = far.by_each_node
    assert view is not None
    assert len(view.classes) == len(far.cluster.devices) > len(far.classes)
    assert far.by_each_node is view
    many = field_problem(FieldCase("volunteers", 8), SEED)
    assert len(many.cluster.devices) > MAX_CLASSES
    assert many.by_each_node is None


def test_where_nodes_have_several_devices_stages_may_have_replicas() -> None:
    problem = field_problem(FieldCase("spot-regions", 6), SEED)
    view = problem.by_each_node
    assert view is not None
    assert len(problem.classes) < len(view.classes) < len(problem.cluster.devices)
    assert all(len({device.node for device in entry.devices}) == 1 for entry in view.classes)
    plan = quick_plan(with_size(problem, 1), Budget(), 0, WALKS)
    assert plan is not None
    assert max(Counter(stage.first_layer for stage in plan.stages).values()) > 1


def test_the_clock_says_of_single_devices_what_the_simulator_says(far: Problem) -> None:
    view = far.by_each_node
    assert view is not None
    question = Question.of(view, Budget())
    code = greedy_code(question)
    assert code is not None
    (clocked_s,) = clocked_costs(view, question, [code])
    plan = plan_as_clocked(far, question, code)
    assert simulated_step_time_s(far, plan) == pytest.approx(clocked_s, rel=0.02)


def test_a_walk_finds_a_plan_that_fits_and_is_faster_than_its_beginning(far: Problem) -> None:
    question = Question.of(far.by_each_node or far, Budget())
    code = greedy_code(question)
    assert code is not None
    start = plan_as_clocked(far, question, code)
    found = best_over_devices(far, start, Budget(), 0)
    assert found is not None
    assert feasible_step_time_s(far, found) < simulated_step_time_s(far, start)
    again = best_over_devices(far, start, Budget(), 0)
    assert again is not None
    assert again.runs_like(found)


def test_where_longer_walks_find_nothing_better_the_time_is_left_to_others(far: Problem) -> None:
    question = Question.of(far.by_each_node or far, Budget())
    code = greedy_code(question)
    assert code is not None
    budget = Budget(cpu_seconds=60.0)
    found = best_over_devices(far, plan_as_clocked(far, question, code), budget, 0)
    assert found is not None
    assert budget.cpu_seconds_used < 30.0


@pytest.mark.slow
def test_far_from_one_another_single_devices_are_found_beside_groups_of_them() -> None:
    problem = with_size(field_problem(FieldCase("spot-regions", 7), 56), 1)
    assert problem.strategy.tensor_parallel != (1,)
    plan = quick_plan(problem, Budget(), 0, WALKS)
    assert plan is not None
    assert sum(stage.degree == 1 for stage in plan.stages) > len(plan.stages) / 2
    assert feasible_step_time_s(problem, plan) < 10.5, "from groups alone walks end at 10.95 s"


def test_each_size_has_a_plan_of_its_own_size(far: Problem) -> None:
    sizes = [with_size(far, size) for size in (1, 2)]
    found = best_of_each_size(sizes, Budget(), 0)
    assert sorted(found) == [0, 1]
    for number, plan in found.items():
        assert plan.job == sizes[number].job
        assert feasible_step_time_s(sizes[number], plan) < float("inf")


def test_walks_are_the_first_quick_way_where_the_clock_is_for_a_problem(
    far: Problem, near: Problem
) -> None:
    for problem in (far, near):
        assert quick_ways(problem)[0] == WALKS
        assert quick_plan(problem, Budget(cpu_seconds=0.3), 0, WALKS) is not None
        job = problem.job.changed(objective="price")
        assert WALKS not in quick_ways(Problem(problem.profile, problem.cluster, job))
