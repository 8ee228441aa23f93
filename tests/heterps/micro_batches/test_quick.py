"""What is found in tenths of a second, for all sizes of micro-batches."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps.micro_batches.one_size import with_divided_state
from heterps.micro_batches.quick import QuickPlans
from heterps.micro_batches.sizes import open_sizes, with_size
from heterps.planning.place import place
from heterps.planning.problems import load_problem
from heterps.planning.strategies import OPEN
from heterps_agents.auto.others import COMPOSER, COPIES, EVEN, WALKS
from heterps_agents.auto.planner import AutoPlanner
from heterps_agents.interface.planner import Budget
from heterps_agents.search.uniform import best_uniform
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Node
from heterps_configs.documents.job import Job
from heterps_configs.documents.model.layer import LayerProfile
from heterps_configs.documents.model_profile import ModelProfile
from heterps_configs.documents.plan import Plan
from heterps_envs.problem import Problem
from heterps_envs.problem_sets.field import SEEDS, FieldCase, field_problem
from tests.envs.small_problems import FAST, device_type


def sizes_of(cluster: str, per_group: int | None = None) -> list[Problem]:
    problem = load_problem("gpt2", cluster, global_batch_size=16, strategy=OPEN)
    if per_group is not None:
        nodes = tuple(
            node.changed(devices=tuple(group.changed(count=per_group) for group in node.devices))
            for node in problem.cluster.nodes
        )
        problem = replace(problem, cluster=problem.cluster.changed(nodes=nodes))
    return [with_size(problem, size) for size in open_sizes(problem)]


@pytest.mark.parametrize("per_group", [None, 10], ids=["few devices", "more devices"])
def test_the_best_even_plan_of_all_sizes_is_found(per_group: int | None) -> None:
    asked = sizes_of("a100-v100", per_group)
    quick = QuickPlans(asked, AutoPlanner())
    quick.look(Budget())
    results = quick.finished(Budget())
    even = [best_uniform(problem, Budget()) for problem in asked]
    least = min(each.cost for each in even if each is not None)
    assert min(each.estimate.step_time_s for each in results.values()) <= least * (1 + 1e-9)
    for size, result in results.items():
        assert result.plan.job.micro_batch_size == size
        assert result.estimate.feasible


class _Noting(AutoPlanner):
    """Whose last way has no plans, and notes for which sizes it is asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[int] = []

    def quick_ways(self, problem: Problem) -> tuple[str, ...]:
        return EVEN, COPIES, COMPOSER

    def quick_plan(self, problem: Problem, budget: Budget, way: str) -> Plan | None:
        if way == COMPOSER:
            self.asked.append(problem.job.micro_batch_size)
            return None
        return super().quick_plan(problem, budget, way)


def test_sizes_that_are_far_behind_are_asked_of_nobody_else() -> None:
    """Copies of the model are faster than even plans, and large micro-batches have no copies."""
    problem = field_problem(FieldCase("home-boxes", 3), SEEDS["development"])
    asked, planner = [with_size(problem, size) for size in (4, 16)], _Noting()
    QuickPlans(asked, planner).look(Budget())
    assert planner.asked == [4]


def test_the_cheapest_step_is_looked_for_where_the_price_counts() -> None:
    asked = [
        replace(each, job=each.job.changed(objective="price")) for each in sizes_of("a100-v100")
    ]
    quick = QuickPlans(asked, AutoPlanner())
    quick.look(Budget())
    found = quick.finished(Budget())
    even = [best_uniform(problem, Budget()) for problem in asked]
    # Seconds times dollars per hour, as dollars of a million samples.
    least = min(each.cost for each in even if each is not None) * 1e6 / 3600 / 16
    prices = [each.estimate.price_usd_per_million_samples for each in found.values()]
    assert min(prices) <= least * (1 + 1e-9)


@pytest.mark.slow
def test_without_a_limit_in_time_auto_is_not_behind_what_is_soon_found() -> None:
    """Of two steps of nearly one length the longer one may have more to win by divided state."""
    problem, auto = load_problem("resnet-152", "a100-v100-t4", strategy=OPEN), AutoPlanner()
    asked, quick = [with_size(problem, size) for size in open_sizes(problem)], Budget()
    ways = auto.ending_ways(problem)
    assert ways == (WALKS, EVEN)
    plans = QuickPlans(asked, auto)
    plans.look(quick, ways)
    divided = [with_divided_state(each, auto) for each in plans.finished(quick).values()]
    found = place(problem, auto, budget=Budget(evaluations=500))
    least_s = min(each.estimate.step_time_s for each in divided)
    assert found.estimate.step_time_s <= least_s * (1 + 1e-9)


def test_where_the_rule_of_memory_leaves_fewer_devices_plans_on_all_of_them_count() -> None:
    """Three devices keep more free for messages than one; even plans ask the simulator."""
    layers = [
        LayerProfile(
            name=f"l{index}", kind="block", num_parameters=5000, forward_flops=2e9,
            backward_flops=4e9, activation_bytes=3e5, output_bytes=4e4 if index < 2 else 0.0,
        )
        for index in range(3)
    ]  # fmt: skip
    device = device_type("small", 1_500_000)
    node = Node(name="n", devices=(DeviceGroup(name="d", type="small", count=3),), link=FAST)
    cluster = Cluster(name="c", device_types=(device,), nodes=(node,))
    job = Job(global_batch_size=18, micro_batch_size=2)
    problem = Problem(ModelProfile(name="m", layers=tuple(layers)), cluster, job)
    with pytest.warns(UserWarning, match="2 of 3 devices left out"):
        found = place(problem, AutoPlanner())
    even = place(problem, "uniform-3d")
    assert len(found.plan.devices) == 3
    assert found.estimate.step_time_s <= even.estimate.step_time_s * (1 + 1e-9)
