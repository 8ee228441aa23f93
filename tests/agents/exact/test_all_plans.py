"""Bounds where planners form only some of the plans that a strategy allows."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest

from heterps_agents.exact.all_plans import bound_of_all, least_of_all
from heterps_agents.exact.planner import ExactPlanner, proving_tables
from heterps_agents.exact.solve import solve
from heterps_agents.interface.planner import Budget
from heterps_agents.search.uniform import best_uniform
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.job import Strategy
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.bounds import bound_for
from heterps_envs.closed_form.kernel_tables import kernel_tables
from heterps_envs.closed_form.placement import PlacedStage, closed_form_of_plan_s, placement_of
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind
from tests.envs.small_problems import chain_problem, device_type, with_splits

AGAIN = Strategy(recompute="auto")


def on_two_equal_nodes(memory_bytes: int, num_micro_batches: int) -> Problem:
    """Two layers of 360 bytes with one micro-batch; a tenth of the speed from node to node."""
    base = chain_problem(
        [1, 1], [2, 2], num_micro_batches=num_micro_batches, counts=(1,),
        parameters=[10, 10], activation_bytes=[200, 200], output_bytes=[1, 0],
    )  # fmt: skip
    nodes = tuple(
        Node(
            name=f"n{index}",
            link=Link(latency_s=1e-4, bandwidth_bytes_per_s=1e4),
            devices=(DeviceGroup(name=f"d{index}", type="class0", count=2),),
        )
        for index in range(2)
    )
    cluster = Cluster(
        name="equal",
        device_types=(device_type("class0", memory_bytes),),
        nodes=nodes,
        inter_node_link=Link(latency_s=0.01, bandwidth_bytes_per_s=1e3),
    )
    problem = replace(Problem(base.profile, cluster, base.job), strategy=AGAIN)
    assert problem.merges_nodes
    return problem


def test_what_fits_by_the_simulator_alone_is_not_below_a_bound() -> None:
    problem = on_two_equal_nodes(memory_bytes=360, num_micro_batches=4)
    even = best_uniform(problem, Budget())
    assert even is not None
    placement = placement_of(problem, even.plan)
    assert placement is not None
    bound = ExactPlanner().plan(problem, Budget()).bound
    assert bound.status == "bounded"
    assert bound.step_time_s is not None
    # The planners' own optimum takes 10 s.
    assert bound.step_time_s <= closed_form_of_plan_s(problem, even.plan, placement) < 9


def test_groups_that_planners_do_not_form_are_not_below_a_bound() -> None:
    chain = chain_problem(
        [1, 1], [1, 1], num_micro_batches=1, speeds=(1, 2), counts=(3, 1), parameters=[8, 8]
    )
    problem = replace(with_splits(chain), strategy=Strategy(tensor_parallel=(1, 2)))
    optimum = solve(kernel_tables(proving_tables(problem)))
    assert optimum.step_time_s == pytest.approx(4)
    slow = bind(problem, (PlacedStage(0, 1, 1),), planner="test", seed=0)
    # Placements make no pairs of three devices; the strategy allows them.
    placement = (PlacedStage(0, 1, 0, degree=2),)
    pair = bind(problem, placement, planner="test", seed=0)
    bound = bound_of_all(problem, slow, optimum, Budget(), math.inf)
    assert bound.step_time_s is not None
    assert bound.step_time_s <= closed_form_of_plan_s(problem, pair, placement) < 4


def test_a_bound_stays_the_planners_optimum_where_nothing_is_below_it() -> None:
    problem = on_two_equal_nodes(memory_bytes=1000, num_micro_batches=2)
    plan, budget = ExactPlanner().plan(problem, Budget()), Budget()
    optimum = solve(kernel_tables(proving_tables(problem)))
    bound = bound_of_all(problem, plan, optimum, budget, math.inf)
    assert bound == plan.bound
    assert (bound.status, bound.step_time_s) == ("bounded", optimum.step_time_s)
    by_prices = bound_for(problem, plan)
    assert by_prices.step_time_s is not None
    assert by_prices.step_time_s < optimum.step_time_s
    assert budget.evaluations_used > 0
    # Without the time for a second proof.
    assert bound_of_all(problem, plan, optimum, Budget(), 0.0) == by_prices


def test_the_least_of_all_is_sought_below_a_limit() -> None:
    problem = on_two_equal_nodes(memory_bytes=1000, num_micro_batches=2)
    least = least_of_all(problem, math.inf, 1.0)
    assert least.status == "optimal"
    assert least_of_all(problem, least.step_time_s * 0.99, 1.0).status == "infeasible"
    assert least_of_all(problem, least.step_time_s * 1.01, 1.0)[1:3] == least[1:3]


def test_a_model_without_room_is_told_why_however_little_time_there_is() -> None:
    asked = replace(on_two_equal_nodes(memory_bytes=20, num_micro_batches=2), strategy=AGAIN)
    with pytest.raises(InfeasibleError, match="fits on no device"):
        ExactPlanner().plan(asked, Budget(seconds=1e-9))
