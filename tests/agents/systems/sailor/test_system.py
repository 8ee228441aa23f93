"""Sailor on our problems: types, replicas of one type, and its own cost of the plan."""

from __future__ import annotations

from collections import defaultdict

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.sailor.system import Sailor
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.errors import InfeasibleError
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.options import keeps_to
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from tests.agents.systems.equal_devices import equal_problem
from tests.uneven_problems import MakeProblem


def test_replicas_of_a_stage_are_of_one_type_and_equally_many(make_problem: MakeProblem) -> None:
    problem = make_problem(counts=(2, 4, 4), memory=8.0)
    plan = Sailor().plan(problem, Budget())
    types = defaultdict(list)
    for stage in plan.stages:
        types[stage.first_layer].append(problem.device_named[stage.devices[0]].type.name)
    assert all(len(set(names)) == 1 for names in types.values())
    assert len({len(names) for names in types.values()}) == 1


def test_more_devices_never_cost_time_by_its_own_cost(make_problem: MakeProblem) -> None:
    seconds = []
    for count in (1, 2, 4):
        own = Sailor().answer(make_problem(counts=(1, count, 0), memory=8.0), Budget()).own_cost
        assert own is not None
        seconds.append(own.seconds)
    assert seconds == sorted(seconds, reverse=True)


def test_a_chain_of_equal_layers_costs_what_the_formula_says() -> None:
    """Two devices, no gradients to sum: 16 micro-batches of 16 ms, or 8 of 48 ms on each."""
    problem = equal_problem(num_nodes=1, devices_of_a_node=2, num_parameters=1)
    plan, own = Sailor().answer(problem, Budget())
    assert own is not None
    whole_s = float(problem.tables.compute_s[:, 0].sum())
    assert own.seconds == pytest.approx(8 * whole_s, rel=0.01)
    assert len(plan.pipelines) == 2


def test_replicas_of_a_stage_stay_in_a_region() -> None:
    cluster = load_cluster("spot-two-regions")
    problem = Problem(
        load_profile("vit-large"), cluster, Job(global_batch_size=16, dtype="float32")
    )
    plan = Sailor().plan(problem, Budget())
    regions = defaultdict(set)
    for stage in plan.stages:
        regions[stage.first_layer].add(problem.device_named[stage.devices[0]].region)
    assert all(len(own) == 1 for own in regions.values())


def test_with_prices_the_cheapest_plan_above_the_floor_is_found(make_problem: MakeProblem) -> None:
    quickest = Sailor().plan(make_problem(memory=8.0), Budget())
    assert quickest.predicted_step_time_s is not None
    floor = 16 / quickest.predicted_step_time_s
    cheapest, found = make_problem(memory=8.0, objective="price"), []
    for share in (0.0, 0.3, 0.6):
        job = {"min_throughput_samples_per_s": share * floor} if share else {}
        problem = make_problem(memory=8.0, objective="price", **job)
        own = estimate(problem, Sailor().plan(problem, Budget()))
        assert own.throughput_samples_per_s >= share * floor
        found.append(own.price_usd_per_million_samples)
    assert found == sorted(found)
    assert found[-1] < estimate(cheapest, quickest).price_usd_per_million_samples


def test_groups_are_those_that_a_strategy_allows_on_whole_nodes() -> None:
    profile, cluster = load_profile("llama-7b"), load_cluster("a100-v100-t4")
    job = Job(global_batch_size=32, dtype="bfloat16")
    strategy = Strategy(tensor_parallel=(1, 2, 4))
    problem = Problem(profile, cluster, job, strategy=strategy)
    plan = Sailor().plan(problem, Budget())
    assert keeps_to(plan, strategy)
    assert max(stage.degree for stage in plan.stages) > 1
    for stage in plan.stages:
        assert len({problem.device_named[name].node for name in stage.devices}) == 1
    alone = Sailor().plan(Problem(profile, cluster, job), Budget())
    assert {stage.degree for stage in alone.stages} == {1}


def test_its_memory_check_refuses_what_is_too_large(make_problem: MakeProblem) -> None:
    with pytest.raises(InfeasibleError, match=r"^sailor: test: no pipeline over .* memory check"):
        Sailor().plan(make_problem(memory=0.6), Budget())
