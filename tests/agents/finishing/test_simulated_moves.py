"""Moves on the simulator: never worse, all of them placements, and what the closed form misses."""

import math
import time
from collections.abc import Callable

import numpy as np
import pytest

from heterps_agents.auto.planner import AutoPlanner
from heterps_agents.finishing.simulated_costs import SimulatedCosts
from heterps_agents.finishing.simulated_moves import descend, improve, moves
from heterps_agents.interface.planner import Budget
from heterps_agents.interface.question import Question
from heterps_agents.interface.registry import planner_named
from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.job import Job
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.closed_form.placement import PlacedStage, decode, encode
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import feasible_step_time_s, simulated_step_time_s

MakeProblem = Callable[..., Problem]


def two_kinds(num_fast: int, num_slow: int, between_bytes_per_s: float) -> Cluster:
    """Nodes of eight H100 and of eight A10G."""
    types = ["H100-80G"] * num_fast + ["A10G"] * num_slow
    nodes = tuple(
        Node(
            name=f"n{index}",
            devices=(DeviceGroup(name=f"d{index}", type=kind, count=8),),
            link=Link(latency_s=5e-6, bandwidth_bytes_per_s=3e11 if kind[0] == "H" else 1.2e10),
        )
        for index, kind in enumerate(types)
    )
    between = Link(latency_s=3e-5, bandwidth_bytes_per_s=between_bytes_per_s)
    return Cluster(name="two-kinds", nodes=nodes, inter_node_link=between)


def test_moves_are_other_placements_of_all_layers_that_can_be_used(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem()
    question = Question.of(problem, Budget())
    start = encode([PlacedStage(0, 4, 0), PlacedStage(5, 9, 1)])
    found = moves(start, question.kernel, question.goal)
    assert len(found) > 5
    assert len({code.tobytes() for code in found}) == len(found)
    for code in found:
        assert decode(code)[-1].last_layer == 9
        assert math.isfinite(question.cost(code))
    assert [question.cost(code) for code in found] == sorted(map(question.cost, found))


def test_two_stages_of_one_class_may_unite(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=4.0)
    question = Question.of(problem, Budget())
    apart = encode([PlacedStage(0, 4, 2), PlacedStage(5, 9, 2)])
    united = encode([PlacedStage(0, 9, 2, replicas=2)])
    found = moves(apart, question.kernel, question.goal)
    assert any(np.array_equal(code, united) for code in found)


def test_improving_never_loses_and_keeps_to_its_limit(make_problem: MakeProblem) -> None:
    problem = make_problem()
    question = Question.of(problem, Budget())
    costs = SimulatedCosts(problem, question, "test")
    costs.allow(200)
    first = costs.add(encode([PlacedStage(0, 7, 0), PlacedStage(8, 9, 1)]))
    improve(costs, question.kernel, question.goal, bound=0.0)
    best = costs.best_first()[0]
    assert best.cost < first.cost
    assert sum(len(entry.plan.stages) for entry in costs.found.values()) < 200 + 10
    assert best.plan.predicted_step_time_s == feasible_step_time_s(problem, best.plan)


def test_a_descent_never_loses_and_begins_where_it_is_told(make_problem: MakeProblem) -> None:
    problem = make_problem()
    question = Question.of(problem, Budget())
    costs = SimulatedCosts(problem, question, "test")
    costs.allow(400)
    best = costs.add(encode([PlacedStage(0, 7, 0), PlacedStage(8, 9, 1)]))
    far = costs.add(encode([PlacedStage(0, 1, 2), PlacedStage(2, 9, 1)]))
    descend(costs, question.kernel, question.goal, far)
    beginnings = {code.tobytes() for code in moves(far.code, question.kernel, question.goal)}
    assert beginnings & costs.found.keys() - {best.code.tobytes()}
    assert min(entry.cost for entry in costs.found.values() if entry is not best) <= far.cost


@pytest.mark.slow
def test_the_sum_of_a_tied_embedding_does_not_cross_slow_links() -> None:
    profile = load_profile("gpt2")
    problem = Problem(profile, two_kinds(2, 4, 25e9 / 8), Job(dtype=profile.dtype))
    plan = AutoPlanner().plan(problem, Budget())
    drawn = planner_named("random").plan(problem, Budget(2_000))
    assert plan.predicted_step_time_s is not None
    assert plan.predicted_step_time_s <= (drawn.predicted_step_time_s or 0.0)
    last = plan.num_layers - 1
    ends = [stage for stage in plan.stages if stage.first_layer == 0 or stage.last_layer == last]
    assert len({problem.device_named[stage.devices[0]].node for stage in ends}) == 1


@pytest.mark.slow
def test_under_gpipe_no_placement_that_1f1b_finds_is_missed() -> None:
    profile, cluster = load_profile("llama-7b"), load_cluster("h100-pod")
    jobs = [Job(dtype=profile.dtype, schedule=name) for name in ("gpipe", "1f1b")]
    problem, other = (Problem(profile, cluster, job) for job in jobs)
    plan = AutoPlanner().plan(problem, Budget())
    found = AutoPlanner().plan(other, Budget())
    by_rule = tuple(stage.changed(in_flight=None) for stage in found.stages)
    found = found.changed(stages=by_rule, job=problem.job)
    assert feasible_step_time_s(problem, plan) <= 1.001 * feasible_step_time_s(problem, found)


@pytest.mark.slow
def test_auto_with_few_evaluations_simulates_no_worse_than_a_search_with_as_many() -> None:
    profile, cluster = load_profile("resnet-152"), load_cluster("a100-v100-t4")
    problem = Problem(profile, cluster, Job(dtype=profile.dtype))
    auto_s, search_s = (
        simulated_step_time_s(problem, planner_named(name).plan(problem, Budget(10_000)))
        for name in ("auto", "cross-entropy")
    )
    assert auto_s <= search_s


@pytest.mark.slow
def test_a_limit_in_seconds_is_used_and_never_gives_a_worse_plan() -> None:
    profile = load_profile("resnet-50")
    # Its bound is far below all plans: a proven one would end the search sooner.
    problem = Problem(profile, load_cluster("a100-v100-t4"), Job(dtype=profile.dtype))
    start_s = time.process_time()
    usual = AutoPlanner().plan(problem, Budget())
    # Kernels may still be loaded within the first second, which counts.
    budget = Budget(cpu_seconds=2 * (time.process_time() - start_s) + 1)
    patient = AutoPlanner().plan(problem, budget)
    assert budget.is_exhausted
    assert (patient.predicted_step_time_s or 0.0) <= 1.001 * (usual.predicted_step_time_s or 0.0)
    assert patient.seed == 0
    hurried = Budget(seconds=30.0)
    AutoPlanner(is_patient=False).plan(problem, hurried)
    assert not hurried.is_exhausted
