"""HAP on our problems: groups with uneven shares, replicas with uneven batches, notes in words."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest

from heterps_agents.interface.planner import Budget
from heterps_agents.interface.system import SystemAnswer
from heterps_agents.systems.hap.alternation import with_best_shares
from heterps_agents.systems.hap.joint import best_choice
from heterps_agents.systems.hap.layers import TENSOR_WAYS, group_chain, rates_of
from heterps_agents.systems.hap.system import Hap
from heterps_configs.documents.cluster import Cluster, Collective
from heterps_configs.documents.job import Job
from heterps_configs.library import load_profile
from heterps_envs.closed_form.placement import check_plan
from heterps_envs.problem import Problem
from heterps_envs.simulator.simulate import estimate, simulate


def problem_of(
    speeds: tuple[float, ...], *, num_nodes: int = 1, memory_gb: float = 2.0, **job: Any
) -> Problem:
    """A small Llama on nodes of one device of each speed; a link that is quick inside a node."""
    types = [
        {
            "name": f"speed{speed:g}",
            "memory_bytes": memory_gb * 1e9,
            "peak_flops_per_s": {"float32": speed * 1e11},
            "memory_bandwidth_bytes_per_s": speed * 1e12,
            "price_usd_per_hour": 1.0,
        }
        for speed in dict.fromkeys(speeds)
    ]
    link = {"latency_s": 1e-5, "bandwidth_bytes_per_s": 1e10}
    nodes = [
        {
            "name": f"node{number}",
            "link": link,
            "devices": [
                {"name": f"n{number}d{index}", "type": f"speed{speed:g}"}
                for index, speed in enumerate(speeds)
            ],
        }
        for number in range(num_nodes)
    ]
    cluster = {"name": "test", "device_types": types, "nodes": nodes, "inter_node_link": link}
    settings = {"global_batch_size": 4, "micro_batch_size": 4, "dtype": "float32", **job}
    return Problem(
        load_profile("llama-tiny"), Cluster.from_mapping(cluster), Job.from_mapping(settings)
    )


def answer(problem: Problem) -> SystemAnswer:
    found = Hap().answer(problem, Budget())
    check_plan(problem, found.plan)
    return found


def test_one_micro_batch_goes_over_a_group_with_shares_by_speed() -> None:
    problem = problem_of((3.0, 1.0))
    found = answer(problem)
    (stage,) = found.plan.stages
    assert stage.devices == ("n0d0", "n0d1")
    assert stage.tensor_shares == (0.75, 0.25)
    even = found.plan.changed(stages=(stage.changed(tensor_shares=()),))
    shown_s = simulate(problem, found.plan).step_time_s
    assert simulate(problem, even).step_time_s > 1.8 * shown_s
    assert found.own_cost is not None
    assert found.own_cost.seconds == pytest.approx(shown_s, rel=0.05)


def test_a_group_keeps_layers_whole_whose_sums_take_longer_than_their_work() -> None:
    """Of a table of words every device looks up its samples' rows, rather than adding them up."""
    problem = problem_of((3.0, 1.0), global_batch_size=1, micro_batch_size=1)
    plan = answer(problem).plan
    (stage,) = plan.stages
    assert stage.whole_layers == (0,)
    split = plan.changed(stages=(stage.changed(whole_layers=()),))
    assert simulate(problem, plan).step_time_s < simulate(problem, split).step_time_s


def test_a_group_splits_layers_by_batch_whose_gradients_are_smaller_than_what_they_return() -> None:
    """Not the last one, whose output the loss reads; three of four samples go to the faster one."""
    problem = problem_of((3.0, 1.0))
    found = answer(problem)
    (stage,) = found.plan.stages
    last = problem.profile.num_layers - 1
    assert stage.tensor_shares == (0.75, 0.25)
    assert len(stage.batch_layers) > last - 3
    assert last not in stage.batch_layers
    split = found.plan.changed(stages=(stage.changed(whole_layers=(), batch_layers=()),))
    shown_s = simulate(problem, found.plan).step_time_s
    assert shown_s < simulate(problem, split).step_time_s
    assert found.own_cost is not None
    assert found.own_cost.seconds == pytest.approx(shown_s, rel=0.01)


@pytest.mark.parametrize(
    "change",
    [{"splits_by_batch": False}, {"buffer_bytes": 8}, {"schedule": "zero-bubble"}],
)
def test_what_cannot_be_split_by_batch_is_not(change: dict[str, Any]) -> None:
    problem = problem_of((3.0, 1.0), **change if "schedule" in change else {})
    if "schedule" not in change:
        layers = tuple(layer.changed(**change) for layer in problem.profile.layers)
        problem = replace(problem, profile=problem.profile.changed(layers=layers))
    assert not any(stage.batch_layers for stage in answer(problem).plan.stages)


def test_no_other_choice_of_whole_layers_is_quicker_by_the_cost_of_hap() -> None:
    problem = problem_of((3.0, 1.0))
    chain = group_chain(problem, ["n0d0", "n0d1"]).only(TENSOR_WAYS | {"replicate"})
    first, second, *rest, last = chain.layers
    # Blocks are alike; of most of them only one way is left, so that all programs can be tried.
    layers = (first, second, *((own,) for own, _ in rest[:-1]), rest[-1], last)
    found = best_choice(chain._replace(layers=layers))
    every = [with_best_shares(program, chain).seconds for program in product(*layers)]
    assert len(every) == 16
    assert found.seconds == pytest.approx(min(every), rel=1e-9)


def test_many_micro_batches_are_dealt_by_speed_where_sums_of_gradients_cost_little() -> None:
    plan = answer(problem_of((3.0, 1.0), global_batch_size=64, micro_batch_size=1)).plan
    assert [stage.devices for stage in plan.stages] == [("n0d0",), ("n0d1",)]
    assert [len(pipeline.micro_batches) for pipeline in plan.pipelines] == [47, 17]


def test_groups_of_equal_nodes_are_replicas_with_equal_slices() -> None:
    problem = problem_of((3.0, 1.0), num_nodes=2, global_batch_size=8, memory_gb=0.07)
    plan = answer(problem).plan
    assert [stage.devices for stage in plan.stages] == [("n0d0", "n0d1"), ("n1d0", "n1d1")]
    assert len({stage.tensor_shares for stage in plan.stages}) == 1
    assert [len(pipeline.micro_batches) for pipeline in plan.pipelines] == [1, 1]
    shown = estimate(problem, plan)
    assert not any("cannot" in note or "not supported" in note for note in shown.notes)


def test_a_device_that_is_hopelessly_slow_has_no_slice() -> None:
    plan = answer(problem_of((3.0, 1.0, 0.001))).plan
    assert plan.devices == ("n0d0", "n0d1")


def test_what_no_plan_says_is_said_in_words_with_what_it_would_gain() -> None:
    problem = problem_of((3.0, 1.0))
    found = answer(problem).own_cost
    assert found is not None
    assert "split batch for the layers" in found.note
    assert "in a plan gradients of layers by batch are summed for each micro-batch" in found.note
    alone = problem_of((1.0,))
    own = answer(alone).own_cost
    assert own is not None
    assert own.note == ""
    passes_s = float((alone.tables.forward_s + alone.tables.backward_s).sum())
    assert own.seconds == pytest.approx(passes_s)


def test_measured_collectives_price_the_programs() -> None:
    problem = problem_of((3.0, 1.0))
    (node,) = problem.cluster.nodes
    measured = Collective(kind="all-reduce", devices=2, latency_s=1.0, bandwidth_bytes_per_s=1e9)
    known = problem.cluster.changed(nodes=(node.changed(collectives=(measured,)),))
    slow = Problem(problem.profile, known, problem.job)
    assert rates_of(slow, ["n0d0", "n0d1"]).links["all-reduce"] == measured.link
    assert rates_of(slow, ["n0d0", "n0d1"]).links["all-gather"].latency_s == pytest.approx(1e-5)
    assert answer(slow).plan.devices == ("n0d0",)
