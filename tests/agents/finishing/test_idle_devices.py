"""Why devices idle, on clusters that were built for one reason."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_agents.finishing.idle_devices import IdleClass, idle_classes
from heterps_agents.finishing.lifted_limits import FACTORS, lifted
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.cluster import Link
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate
from tests.envs.small_problems import chain_problem, plan_of

LAYERS = [1.0] * 4, [2.0] * 4
SLOW = Link(latency_s=0.0, bandwidth_bytes_per_s=20.0)


def exact(problem: Problem) -> Plan:
    return planner_named("exact").plan(problem, Budget())


def only_class(problem: Problem) -> tuple[Plan, IdleClass]:
    """The best plan, and the one class that it leaves idle."""
    plan = exact(problem)
    (found,) = idle_classes(problem, plan)
    assert found.plan_cost == estimate(problem, plan).step_time_s
    assert set(found.devices).isdisjoint(plan.devices)
    return plan, found


def test_devices_that_are_a_thousand_times_slower_are_too_slow() -> None:
    problem = chain_problem(*LAYERS, speeds=(1.0, 1000.0), counts=(2, 3))
    _, found = only_class(problem)
    assert (found.device_type, len(found.devices), found.why) == ("class1", 3, "slow")
    assert found.found is not None
    assert found.found.cost > 100 * found.plan_cost
    assert found.found.slowness == pytest.approx(1000.0)
    assert all(each.saves <= 0 for each in found.lifted)
    assert {each.limit for each in found.lifted} == set(FACTORS)


def test_devices_that_no_micro_batch_is_left_for_would_pay_with_a_larger_batch() -> None:
    problem = chain_problem([1.0], [2.0], num_micro_batches=2, counts=(4,))
    plan, found = only_class(problem)
    assert len(plan.devices) == 2
    assert (found.why, found.found) == ("limited", None)
    assert found.lifted[0].limit == "samples"
    # Eight micro-batches: four for each of two devices, two for each of four.
    assert found.lifted[0].saves == pytest.approx(0.5)
    assert all(each.saves <= 0 for each in found.lifted[1:])


def test_devices_without_room_for_a_layer_would_pay_with_more_memory() -> None:
    # A layer is 1,000 parameters of 8 bytes each.
    problem = chain_problem(
        *LAYERS, speeds=(1.0, 1.0), counts=(1, 1), memory_bytes=(10**6, 6000),
        parameters=[1000] * 4,
    )  # fmt: skip
    with pytest.warns(UserWarning, match="1 class1 left out: no layer fits"):
        plan, found = only_class(problem)
    assert len(plan.devices) == 1
    assert found.why == "memory"
    assert found.found is not None
    assert found.found.over_bytes == 2000
    assert found.lifted[0].limit == "memory"
    assert found.lifted[0].saves > 0.3


def test_devices_behind_a_slow_link_would_pay_with_a_faster_one() -> None:
    problem = chain_problem(
        *LAYERS, counts=(2,), link=SLOW, output_bytes=[1000.0] * 4, parameters=[10**5] * 4
    )
    plan, found = only_class(problem)
    assert len(plan.devices) == 1
    assert found.why == "limited"
    assert found.found is not None
    assert found.found.cost > found.plan_cost
    assert found.lifted[0].limit == "links"
    assert found.lifted[0].saves > 0.3


def test_a_plan_that_a_planner_did_not_find_is_told() -> None:
    problem = chain_problem(*LAYERS, counts=(2,))
    plan = plan_of(problem, {"s0": (0, 3, "d0-0")}, {("s0",): range(8)})
    (found,) = idle_classes(problem, plan)
    assert (found.why, found.devices) == ("missed", ("d0-1",))
    assert found.found is not None
    assert found.found.num_devices == 1
    # What it says is what the plan with them costs.
    assert found.found.cost == pytest.approx(estimate(problem, exact(problem)).step_time_s)


def test_nothing_is_said_where_all_devices_work() -> None:
    problem = chain_problem(*LAYERS, counts=(2,))
    plan = exact(problem)
    assert len(plan.devices) == 2
    assert idle_classes(problem, plan) == ()


def test_plans_of_unequal_pipelines_are_not_looked_at() -> None:
    problem = chain_problem(*LAYERS, counts=(4,))
    stages = {"a": (0, 3, "d0-0"), "b": (0, 1, "d0-1"), "c": (2, 3, "d0-2")}
    plan = plan_of(problem, stages, {("a",): range(3), ("b", "c"): range(3, 8)})
    (found,) = idle_classes(problem, plan)
    assert (found.why, found.found, found.lifted) == ("unknown", None, ())


def test_a_plan_of_groups_is_asked_for_groups_where_nobody_says_what_may_be_chosen() -> None:
    """As the report of a plan's file does."""
    profile = load_profile("gpt2")
    job = Job(dtype=profile.dtype, global_batch_size=2, micro_batch_size=1)
    asked = Problem(profile, load_cluster("h100-pod"), job, strategy=Strategy(tensor_parallel=(2,)))
    plan = planner_named("greedy").plan(asked, Budget())
    assert {stage.degree for stage in plan.stages} == {2}
    (found,) = idle_classes(asked, plan)
    assert idle_classes(replace(asked, strategy=Strategy()), plan) == (found,)
    assert found.found is not None
    assert found.found.stage.degree == 2


def test_without_time_only_what_is_found_now_is_told() -> None:
    problem = chain_problem(*LAYERS, speeds=(1.0, 1000.0), counts=(2, 3))
    (found,) = idle_classes(problem, exact(problem), most_seconds=0.0)
    assert (found.why, found.lifted) == ("unknown", ())
    assert found.found is not None


def test_a_lifted_limit_changes_one_thing() -> None:
    problem = chain_problem(*LAYERS, counts=(2,), memory_bytes=(1000,), link=SLOW)
    more = lifted(problem, "samples")
    assert more.job.num_micro_batches == FACTORS["samples"] * problem.job.num_micro_batches
    assert more.cluster == problem.cluster
    links = lifted(problem, "links")
    (node,) = links.cluster.nodes
    assert node.link is not None
    assert node.link.bandwidth_bytes_per_s == FACTORS["links"] * SLOW.bandwidth_bytes_per_s
    assert links.job == problem.job
    memory = lifted(problem, "memory")
    assert {each.memory_bytes for each in memory.cluster.devices} == {FACTORS["memory"] * 1000}
