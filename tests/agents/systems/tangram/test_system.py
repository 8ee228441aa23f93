"""Tangram on our problems: islands of equal devices, one after the other."""

from __future__ import annotations

from dataclasses import replace

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.systems.tangram.system import Tangram
from heterps_configs.documents.cluster import Cluster
from heterps_configs.documents.job import Job, Strategy
from heterps_configs.documents.plan import Plan
from heterps_configs.errors import InfeasibleError
from heterps_configs.library import load_cluster, load_profile
from heterps_envs.problem import Problem
from tests.uneven_problems import MakeProblem


def types_by_layer(problem: Problem, plan: Plan) -> list[set[str]]:
    """For each stage's layers in the order of the model, the types of its devices."""
    found: dict[range, set[str]] = {}
    for stage in sorted(plan.stages, key=lambda stage: stage.first_layer):
        kinds = {problem.device_named[name].type.name for name in stage.devices}
        found.setdefault(stage.layers, set()).update(kinds)
    return list(found.values())


def test_each_stage_is_on_one_type_and_each_type_is_one_slice(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=2.0, global_batch_size=32)
    plan, own_cost = Tangram().answer(problem, Budget())
    kinds = types_by_layer(problem, plan)
    assert all(len(each) == 1 for each in kinds)
    in_turn = [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]]
    assert len(in_turn) == len({next(iter(kind)) for kind in in_turn}) > 1
    assert own_cost is not None
    assert plan.predicted_step_time_s is not None
    assert own_cost.seconds == pytest.approx(plan.predicted_step_time_s, rel=0.15)


def test_islands_behind_slow_links_stay_idle(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=40.0, bandwidth_bytes_per_s=1e7)
    assert len(types_by_layer(problem, Tangram().plan(problem, Budget()))) == 1


def test_stages_may_be_computed_again_where_that_alone_is_open(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=0.5, global_batch_size=64, micro_batch_size=4)
    plan = Tangram().plan(replace(problem, strategy=Strategy(recompute="auto")), Budget())
    assert any(stage.recompute_layers for stage in plan.stages)
    assert all(stage.degree == 1 for stage in plan.stages)
    assert not plan.sharded_state


def test_a_strategy_says_what_stages_may_be(make_problem: MakeProblem) -> None:
    problem = make_problem(memory=0.6, global_batch_size=64, micro_batch_size=4)
    again = Tangram().plan(replace(problem, strategy=Strategy(recompute="full")), Budget())
    assert all(stage.recompute_layers == tuple(stage.layers) for stage in again.stages)
    never = Tangram().plan(replace(problem, strategy=Strategy(shard_state="auto")), Budget())
    assert not any(stage.recompute_layers for stage in never.stages)


def test_a_large_model_gets_tensor_parallel_groups_where_these_are_allowed() -> None:
    job = Job(global_batch_size=16, dtype="bfloat16")
    strategy = Strategy(tensor_parallel=(), recompute="auto")
    problem = Problem(
        load_profile("llama-70b"), load_cluster("h100-pod"), job, strategy=strategy
    )  # fmt: skip
    plan = Tangram().plan(problem, Budget())
    assert any(stage.degree > 1 for stage in plan.stages)


def test_equal_nodes_are_one_island_where_that_is_quicker() -> None:
    """Four nodes of one device: as islands they are four slices; together they are replicas."""
    link = {"latency_s": 1e-6, "bandwidth_bytes_per_s": 1e11}
    cluster = {
        "name": "four",
        "nodes": [
            {
                "name": f"node{index}",
                "devices": [{"name": f"gpu{index}", "type": "A100-40G", "count": 1}],
                "link": link,
            }
            for index in range(4)
        ],
        "inter_node_link": link,
    }
    job = Job(global_batch_size=64, dtype="bfloat16")
    problem = Problem(load_profile("vit-large"), Cluster.from_mapping(cluster), job)
    plan = Tangram().plan(problem, Budget())
    assert len({stage.layers for stage in plan.stages}) < 4


def test_what_has_no_room_is_refused(make_problem: MakeProblem) -> None:
    with pytest.raises(InfeasibleError, match=r"^tangram: no pipeline of even plans has room"):
        Tangram().plan(make_problem(memory=0.1), Budget())
