"""Even plans: all of them, the best of them, and what none of them does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_agents.search.uniform import (
    best_uniform,
    best_uniform_of_each,
    micro_batch_candidates,
    uniform_plans,
)
from heterps_agents.search.uniform_costs import UniformCosts
from heterps_agents.search.uniform_shapes import (
    EvenStrategy,
    Shape,
    even_cuts,
    even_strategies,
    groups_of,
    plan_of_strategy,
)
from heterps_configs.documents.cluster import DeviceGroup, Link, Node
from heterps_configs.documents.estimate import Estimate
from heterps_configs.documents.job import Strategy
from heterps_configs.documents.model.tensor_split import TensorSplit
from heterps_configs.errors import InfeasibleError
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from tests.envs.small_problems import chain_problem

MakeProblem = Callable[..., Problem]
OPEN = Strategy(tensor_parallel=(), recompute="auto", shard_state="auto")
LINK = Link(latency_s=1e-3, bandwidth_bytes_per_s=1000.0)


def blocks(num_layers: int = 4, state: int = 100, kept: float = 80.0, **values: Any) -> Problem:
    """Equal layers that a group splits, but for a fifth of them; all is open."""
    size = [1.0] * num_layers
    problem = chain_problem(
        size, [2.0] * num_layers, parameters=[state] * num_layers,
        activation_bytes=[kept] * num_layers, output_bytes=[8.0] * num_layers,
        optimizer_s=[0.5] * num_layers, **{"link": LINK, **values},
    )  # fmt: skip
    split = TensorSplit(
        unit="heads", num_units=8, parameters=4 * state // 5, forward_flops=8e11,
        backward_flops=16e11, activation_bytes=0.8 * kept, forward_sums=(8.0,),
        backward_sums=(8.0,),
    )  # fmt: skip
    layers = tuple(
        layer.changed(forward_flops=1e12, backward_flops=2e12, tensor_split=split)
        for layer in problem.profile.layers
    )
    profile = problem.profile.changed(layers=layers)
    return replace(problem, profile=profile, strategy=OPEN)


def brute_force(problem: Problem) -> float:
    """The least step time of all even plans that fit, each simulated."""
    shown = [each for way in even_strategies(problem) for each in both_ways(problem, way)]
    return min(each.step_time_s for each in shown if each.feasible)


def both_ways(problem: Problem, strategy: EvenStrategy) -> list[Estimate]:
    """With gradient sums beside backward passes, and after them."""
    plan = plan_of_strategy(problem, strategy, "", 0)
    return [estimate(problem, plan.changed(overlaps_reduce=early)) for early in (True, False)]


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"schedule": "gpipe", "memory_bytes": [2200]},
        {"memory_bytes": [1400]},
        {"link": Link(latency_s=0.5, bandwidth_bytes_per_s=20.0)},
        {"samples": 13, "micro_batch_size": 2},
        {"schedule": "zero-bubble", "speeds": (1.0, 2.0), "counts": (4, 4)},
    ],
    ids=["roomy", "gpipe", "tight", "slow links", "unequal micro-batches", "two types"],
)
def test_the_best_even_plan_is_that_of_brute_force(values: dict[str, Any]) -> None:
    problem = blocks(**{"counts": (4,), **values})
    found = best_uniform(problem, Budget())
    assert found is not None
    assert found.cost == pytest.approx(brute_force(problem))
    assert found.cost == pytest.approx(estimate(problem, found.plan).step_time_s)


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "interleaved", "zero-bubble"])
def test_no_bound_rules_out_what_the_simulator_allows(schedule: str) -> None:
    problem = blocks(schedule=schedule, counts=(2, 2), speeds=(1.0, 3.0), memory_bytes=[2400, 2000])
    strategies = list(even_strategies(problem))
    fitting = 0
    for strategy, quick in zip(strategies, UniformCosts(problem).quick(strategies), strict=True):
        for shown in both_ways(problem, strategy):
            assert quick.least_s <= shown.step_time_s * (1 + 1e-9), strategy
            assert quick.lacks_bytes <= 0 or not shown.feasible, strategy
            fitting += int(shown.feasible)
    assert fitting > 10


@pytest.mark.parametrize("objective", ["throughput", "price"])
def test_what_costs_too_much_is_left_out_and_nothing_else(objective: str) -> None:
    plain = blocks(counts=(2, 2), speeds=(1.0, 3.0), memory_bytes=[2400, 2000])
    problem = replace(plain, job=plain.job.changed(objective=objective))
    best = best_uniform(problem, Budget())
    assert best is not None
    assert best_uniform(problem, Budget(), below=best.cost * (1 + 1e-9)) == best
    assert best_uniform(problem, Budget(), below=best.cost) is None


@pytest.mark.parametrize("num_layers", [4, 6])
def test_the_closed_form_is_near_what_the_simulator_says(num_layers: int) -> None:
    problem = blocks(num_layers, counts=(4, 4), speeds=(1.0, 2.0), num_micro_batches=8)
    for strategy in even_strategies(problem):
        (quick,) = UniformCosts(problem).quick([strategy])
        early, late = both_ways(problem, strategy)
        assert quick.early_s == pytest.approx(early.step_time_s, rel=0.25), strategy
        assert quick.late_s == pytest.approx(late.step_time_s, rel=0.25), strategy


def test_sums_of_parameters_that_stages_share_count() -> None:
    link = Link(latency_s=1e-6, bandwidth_bytes_per_s=5e3)
    problems = [blocks(counts=(4,), link=link, tied_to=tied) for tied in ({}, {3: 0})]
    strategy = EvenStrategy(Shape(1, 2, 2))
    quick_s = [UniformCosts(each).quick([strategy])[0].late_s for each in problems]
    shown_s = [both_ways(each, strategy)[1].step_time_s for each in problems]
    assert shown_s[1] > shown_s[0]
    assert quick_s[1] - quick_s[0] == pytest.approx(shown_s[1] - shown_s[0], rel=0.3)


def test_the_best_of_several_problems_is_the_best_of_each() -> None:
    sized = [blocks(counts=(4,), micro_batch_size=size, samples=16) for size in (1, 2, 4, 8)]
    each = [best_uniform(problem, Budget()) for problem in sized]
    found = best_uniform_of_each(sized, Budget())
    assert found[-1].plan.cost == min(even.cost for even in each if even is not None)
    assert found[-1].plan.plan.job == sized[found[-1].number].job
    costs = [entry.plan.cost for entry in found]
    assert costs == sorted(costs, reverse=True)
    assert best_uniform_of_each(sized, Budget(), below=costs[-1]) == []


def test_a_plan_whose_sums_come_later_says_so_unless_its_job_does() -> None:
    # Early sums come in many buckets, each of which costs a latency that the passes do not hide.
    slow = blocks(
        8, state=4_000_000, counts=(4,), link=Link(latency_s=3.0, bandwidth_bytes_per_s=1e9)
    )
    found = best_uniform(slow, Budget())
    assert found is not None
    assert found.strategy.shape.num_replicas == 1 or found.plan.overlaps_reduce is False
    said = replace(slow, job=slow.job.changed(overlaps_reduce=True))
    own = best_uniform(said, Budget())
    assert own is not None
    assert own.plan.overlaps_reduce is None
    assert own.cost >= found.cost


def test_all_even_plans_are_there() -> None:
    """Degree, stages and replicas of four equal devices and four layers, by hand."""
    found = list(even_strategies(blocks(counts=(4,))))
    arranged = {(1, 1, 1), (1, 1, 2), (1, 1, 4), (1, 2, 1), (1, 2, 2), (1, 4, 1)}
    arranged |= {(2, 1, 1), (2, 1, 2), (2, 2, 1), (4, 1, 1)}
    assert {each.shape[:3] for each in found} == arranged
    # All keep or recompute; four with replicas may shard, and one has two orders of its devices.
    assert len(found) == len(set(found)) == 2 * (10 + 4 + 2)


def test_a_strategy_allows_some_of_them() -> None:
    strategy = Strategy(tensor_parallel=(2, 4), recompute="full")
    found = list(even_strategies(replace(blocks(counts=(4,)), strategy=strategy)))
    assert {each.shape.degree for each in found} == {2, 4}
    assert {(each.recomputes, each.shards_state) for each in found} == {(True, False)}


def test_where_all_is_forbidden_stages_are_single_devices_that_keep_all() -> None:
    found = list(even_strategies(blocks(counts=(4,)).plain))
    assert {each.shape.degree for each in found} == {1}
    assert not any(each.recomputes or each.shards_state for each in found)


@pytest.mark.parametrize(
    ("memory", "is_needed"),
    [
        # A device has less than a layer's weights and gradients.
        (780, lambda strategy: strategy.shape.degree > 1),
        # Four micro-batches of four layers, where one layer's activations take most of a device.
        (4300, lambda strategy: strategy.recomputes),
    ],
    ids=["tensor parallel", "recompute"],
)
def test_what_alone_fits_is_found(memory: int, is_needed: Callable[[EvenStrategy], bool]) -> None:
    is_large = memory < 1000
    problem = blocks(
        num_layers=2, state=100 if is_large else 1, kept=4.0 if is_large else 3000.0,
        counts=(4,) if is_large else (1,), memory_bytes=[memory],
    )  # fmt: skip
    found = best_uniform(problem, Budget())
    assert found is not None
    assert is_needed(found.strategy)


def test_groups_are_of_one_type_on_one_node_in_the_order_of_the_file(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(counts=(3, 4, 2))
    assert groups_of(problem, 2) == [
        ("fast-0", "fast-1"),
        ("middle-0", "middle-1"),
        ("middle-2", "middle-3"),
        ("small-0", "small-1"),
    ]
    best = best_uniform(problem, Budget())
    assert best is not None
    assert estimate(problem, best.plan).feasible


def test_a_node_of_one_device_has_groups_of_one() -> None:
    problem = blocks(counts=(4,))
    lone = Node(name="lone", devices=(DeviceGroup(name="lone", type="class0"),))
    nodes = (*problem.cluster.nodes, lone)
    problem = replace(problem, cluster=problem.cluster.changed(nodes=nodes, inter_node_link=LINK))
    assert len(groups_of(problem, 1)) == 5
    assert len(groups_of(problem, 2)) == 2
    assert best_uniform(problem, Budget()) is not None


def test_neighbours_are_replicas_or_stages() -> None:
    assert Shape(1, 2, 3).grid.tolist() == [[0, 1, 2], [3, 4, 5]]
    assert Shape(1, 2, 3, is_by_pipeline=True).grid.tolist() == [[0, 2, 4], [1, 3, 5]]


def test_layers_of_the_most_frequent_kind_are_cut_evenly() -> None:
    problem = blocks(num_layers=8)
    kinds = ["embedding", "block", "block", "block", "block", "block", "norm", "head"]
    layers = [
        layer.changed(kind=kind) for layer, kind in zip(problem.profile.layers, kinds, strict=True)
    ]
    problem = replace(problem, profile=problem.profile.changed(layers=tuple(layers)))
    assert even_cuts(problem, 2) == [range(3), range(3, 8)]
    assert even_cuts(problem, 5)[0] == range(2)
    assert even_cuts(problem, 8) == [range(index, index + 1) for index in range(8)]


def test_the_planner_keeps_the_micro_batch_size_and_a_search_over_sizes_does_not() -> None:
    problem = blocks(counts=(4,), micro_batch_size=2, samples=12)
    plan = planner_named("uniform-3d", seed=3).plan(problem, Budget())
    assert (plan.planner, plan.seed, plan.job) == ("uniform-3d", 3, problem.job)
    assert micro_batch_candidates(problem) == [1, 2, 3, 4, 6, 8, 12]
    found = uniform_plans(problem, [1, 2, 3])
    assert found[0].cost <= (plan.predicted_step_time_s or 0) * (1 + 1e-9)
    assert {each.plan.job.micro_batch_size for each in found} <= {1, 2, 3}


def test_a_model_too_large_for_all_even_plans_is_refused_with_the_bytes() -> None:
    with pytest.raises(InfeasibleError, match=r"uniform-3d: none of .* even plans fits.*B"):
        planner_named("uniform-3d").plan(blocks(memory_bytes=[300]), Budget())


def test_a_budget_ends_the_simulations() -> None:
    budget = Budget(evaluations=1)
    planner_named("uniform-3d").plan(blocks(), budget)
    assert budget.evaluations_used == 1
