"""Metis on our problems: uneven stages and shares, and names that do not matter."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.metis.system import Metis
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import HeterpsError, InfeasibleError
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.problem import Problem
from tests.agents.systems.equal_devices import equal_problem
from tests.agents.systems.malleus.grouped_problems import grouped_problem
from tests.uneven_problems import MakeProblem, uneven_problem


def test_each_stage_sees_every_micro_batch_once_and_the_cost_is_near_the_simulated_step(
    make_problem: MakeProblem,
) -> None:
    problem = make_problem(memory=40.0, counts=(2, 2, 2), bandwidth_bytes_per_s=1e13)
    plan, own_cost = Metis().answer(problem, Budget())
    of_stage: Counter[int] = Counter()
    for name, count in passed(plan).items():
        of_stage[plan.stage(name).first_layer] += count
    assert set(of_stage.values()) == {problem.job.num_micro_batches}
    assert own_cost is not None
    assert own_cost.seconds == pytest.approx(plan.predicted_step_time_s, rel=0.2)


def passed(plan: Plan) -> Counter[str]:
    """Micro-batches that pass each stage."""
    found: Counter[str] = Counter()
    for pipeline in plan.pipelines:
        for name in pipeline.stages:
            found[name] += len(pipeline.micro_batches)
    return found


def test_a_stage_of_unlike_devices_is_dealt_unevenly() -> None:
    """A model of one layer on a device and three that are 2.7 times as slow."""
    problem = uneven_problem(memory=40.0, counts=(1, 3, 0), bandwidth_bytes_per_s=1e13)
    one_stage = replace(problem, profile=problem.profile.changed(layers=problem.profile.layers[:1]))
    plan, _ = Metis().answer(one_stage, Budget())
    shares = {plan.stage(name).devices[0]: count for name, count in passed(plan).items()}
    assert len(shares) == 4
    assert max(shares, key=lambda name: shares[name]).startswith("fast")
    assert max(shares.values()) > 1.5 * min(shares.values())


def renamed(plan: Plan, names: dict[str, str]) -> Plan:
    stages = tuple(
        stage.changed(devices=tuple(names[name] for name in stage.devices)) for stage in plan.stages
    )
    return plan.changed(stages=stages)


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.integers(0, 2),
    st.integers(1, 4),
    st.integers(1, 2),
    st.sampled_from([1e9, 1e10]),
    st.integers(0, 99),
)
def test_renaming_devices_changes_nothing(
    fast: int, middle: int, small: int, bandwidth: float, seed: int
) -> None:
    problem = uneven_problem(
        memory=2.0, counts=(fast, middle, small), bandwidth_bytes_per_s=bandwidth
    )
    # Names that sort in another order than they stand.
    document = problem.cluster.to_mapping()
    for number, node in enumerate(document["nodes"]):
        for group in node["devices"]:
            group["name"] = f"{(seed + 7 * number) % 10}-{group['name'][::-1]}"
    other = replace(problem, cluster=Cluster.from_mapping(document))
    names = dict(zip(problem.device_named, other.device_named, strict=True))
    try:
        plan, own_cost = Metis().answer(problem, Budget())
    except InfeasibleError as error:
        with pytest.raises(InfeasibleError, match=re.escape(str(error)[:40])):
            Metis().answer(other, Budget())
        return
    found, found_cost = Metis().answer(other, Budget())
    assert found_cost == own_cost
    assert found.runs_like(renamed(plan, names))


def test_equal_nodes_in_another_order_change_nothing() -> None:
    job = Job.from_mapping({"global_batch_size": 32, "micro_batch_size": 1, "dtype": "bfloat16"})
    cluster, profile = load_cluster("a100-v100-t4"), load_profile("vit-large")
    nodes = list(cluster.nodes)
    turned = cluster.changed(nodes=(nodes[0], nodes[2], nodes[1], nodes[3]))
    assert {node.name for node in nodes} == {node.name for node in turned.nodes}
    answers = [Metis().answer(Problem(profile, each, job), Budget()) for each in (cluster, turned)]
    assert answers[0].own_cost == answers[1].own_cost
    shapes = [
        Counter((s.first_layer, s.last_layer, s.degree) for s in answer.plan.stages)
        for answer in answers
    ]
    assert shapes[0] == shapes[1]


def test_groups_are_made_where_a_strategy_allows_them() -> None:
    problem = grouped_problem(memory_bytes=[9_000])
    plan, own_cost = Metis().answer(problem, Budget())
    assert max(stage.degree for stage in plan.stages) > 1
    plain, plain_cost = Metis().answer(replace(problem, strategy=Strategy()), Budget())
    assert {stage.degree for stage in plain.stages} == {1}
    assert own_cost is not None
    assert plain_cost is not None
    assert own_cost.seconds < plain_cost.seconds


def test_a_model_without_room_is_refused(make_problem: MakeProblem) -> None:
    with pytest.raises(InfeasibleError, match=r"^metis: no stages of 1 devices for each replica"):
        Metis().plan(make_problem(memory=0.3), Budget())


def test_devices_that_are_no_powers_of_two_for_few_layers_are_a_reason_to_refuse() -> None:
    problem = equal_problem(num_nodes=1, devices_of_a_node=7, num_layers=3)
    with pytest.raises(HeterpsError, match=r"^metis: needs 7 devices to be at most 3 groups"):
        Metis().plan(problem, Budget())
