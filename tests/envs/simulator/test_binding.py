"""Binding: every device once, of the right class, near those that it talks with."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from heterps_configs.documents.cluster import Cluster, DeviceGroup, Link, Node
from heterps_configs.documents.plan import Bound, LayerRange, Plan
from heterps_configs.errors import InfeasibleError
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.problem import Problem
from heterps_envs.simulator.binding import bind, bound_plan
from heterps_envs.simulator.simulate import estimate
from tests.envs.small_problems import chain_problem, device_type, placements, with_splits


@given(st.data(), st.integers(1, 9))
def test_each_stage_gets_devices_of_its_class_and_its_share(
    data: st.DataObject, num_micro_batches: int
) -> None:
    problem = chain_problem(
        [1] * 4, [1] * 4, num_micro_batches=num_micro_batches, counts=(3, 3), speeds=(1, 2)
    )
    placement = data.draw(placements(4, (3, 3)))
    plan = bind(problem, placement, planner="test", seed=3)
    assert max(Counter(d for stage in plan.stages for d in stage.devices).values()) == 1
    for index, stage in enumerate(placement):
        names = {s.name for s in plan.stages if s.name.split("r")[0] == f"s{index}"}
        assert len(names) == min(stage.replicas, num_micro_batches)
        for m in range(num_micro_batches):
            taken = plan.route(m)[index]
            assert taken.name in names
            assert problem.class_of[taken.devices[0]] == stage.device_class
            assert taken.layers == range(stage.first_layer, stage.last_layer + 1)
    assert len({pipeline.stages for pipeline in plan.pipelines}) == len(plan.pipelines)


def test_a_plan_names_what_it_was_made_from() -> None:
    problem = chain_problem([1, 1], [1, 1], num_micro_batches=2)
    problem = Problem(problem.profile, problem.cluster, problem.job, "chain.yaml", "cluster.yaml")
    bound = Bound(step_time_s=1.0, gap=0.0, status="proven")
    plan = bind(problem, (PlacedStage(0, 1, 0, 2),), planner="exact", seed=7, bound=bound)
    assert [stage.name for stage in plan.stages] == ["s0r0", "s0r1"]
    assert (plan.planner, plan.seed, plan.bound) == ("exact", 7, bound)
    assert (plan.model_reference, plan.cluster_reference) == ("chain.yaml", "cluster.yaml")
    assert plan.model_fingerprint == problem.profile.layers_fingerprint()
    assert plan.predicted_step_time_s == estimate(problem, plan).step_time_s
    assert Plan.from_mapping(plan.to_mapping()) == plan


@pytest.mark.parametrize("replicas", [1, 2, 8])
@pytest.mark.parametrize("way", [{"recompute": True}, {"offload": True}, {"shards_state": True}])
def test_what_is_bound_without_checks_is_what_checks_make_of_it(
    replicas: int, way: dict[str, bool]
) -> None:
    problem = with_splits(
        chain_problem([1] * 4, [1] * 4, num_micro_batches=4, counts=(16, 2), speeds=(1, 2))
    )
    stages = PlacedStage(0, 2, 0, replicas, degree=2, **way), PlacedStage(3, 3, 1, 2)
    plan = bound_plan(problem, stages, planner="test", seed=3)
    assert Plan.from_mapping(plan.to_mapping()) == plan
    assert Plan.from_mapping(plan.to_mapping()).to_mapping() == plan.to_mapping()


@pytest.fixture
def two_kinds_on_three_nodes(monkeypatch: pytest.MonkeyPatch) -> Problem:
    """Node a: two slow; node b: one fast, two slow; node c: one fast. Slow links between nodes."""
    # Few classes: these tests are about the choice of nodes inside a class.
    monkeypatch.setattr("heterps_envs.problem_documents.MAX_NODE_CLASSES", 0)
    inside = Link(latency_s=0.0, bandwidth_bytes_per_s=100.0)
    problem = chain_problem(
        [1] * 4,
        [1] * 4,
        counts=(2, 4),
        speeds=(1, 2),
        output_bytes=[1.0, 1.0, 1.0, 0.0],
        parameters=[1] * 4,
    )
    layout = {"a": [("class1", 2)], "b": [("class0", 1), ("class1", 2)], "c": [("class0", 1)]}
    cluster = Cluster(
        name="nodes",
        device_types=(device_type("class0"), device_type("class1")),
        nodes=tuple(
            Node(
                name=node,
                link=inside,
                devices=tuple(
                    DeviceGroup(name=f"{node}-{kind}", type=kind, count=count)
                    for kind, count in groups
                ),
            )
            for node, groups in layout.items()
        ),
        inter_node_link=Link(latency_s=1.0, bandwidth_bytes_per_s=1.0),
    )
    return Problem(problem.profile, cluster, problem.job)


def nodes_of(problem: Problem, plan: Plan) -> list[str]:
    return [problem.device_named[name].node for name in plan.devices]


def test_neighbouring_stages_are_put_on_one_node(two_kinds_on_three_nodes: Problem) -> None:
    problem = two_kinds_on_three_nodes
    slow, fast = problem.classes[0].name, problem.classes[1].name
    assert (slow, fast) == ("class1", "class0")
    placement = (PlacedStage(0, 0, 1), PlacedStage(1, 2, 0), PlacedStage(3, 3, 0))
    plan = bind(problem, placement, planner="test", seed=0)
    assert nodes_of(problem, plan) == ["b", "b", "b"]
    # The first stage has the choice of nodes: it looks ahead to the one that the rest needs.
    plan = bind(problem, (PlacedStage(0, 0, 0), PlacedStage(1, 3, 1)), planner="test", seed=0)
    assert nodes_of(problem, plan) == ["b", "b"]


def test_replicas_of_one_stage_are_put_on_one_node(two_kinds_on_three_nodes: Problem) -> None:
    problem = two_kinds_on_three_nodes
    plan = bind(problem, (PlacedStage(0, 3, 0, 2),), planner="test", seed=0)
    assert len(set(nodes_of(problem, plan))) == 1


def test_replicas_that_fit_on_one_of_equal_nodes_are_put_there() -> None:
    base = chain_problem(
        [1] * 4, [1] * 4, counts=(8,), output_bytes=[1.0, 1.0, 1.0, 0.0], parameters=[100] * 4
    )
    nodes = tuple(
        Node(
            name=name,
            link=Link(latency_s=0.0, bandwidth_bytes_per_s=100.0),
            devices=(DeviceGroup(name=name, type="class0", count=4),),
        )
        for name in ("a", "b")
    )
    slow = Link(latency_s=1.0, bandwidth_bytes_per_s=1.0)
    types = (device_type("class0"),)
    cluster = Cluster(name="two", device_types=types, nodes=nodes, inter_node_link=slow)
    problem = Problem(base.profile, cluster, base.job)
    # The second stage would begin beside the first one, where there is room for one of three.
    plan = bind(problem, (PlacedStage(0, 1, 0, 3), PlacedStage(2, 3, 0, 3)), planner="t", seed=0)
    assert nodes_of(problem, plan) == ["a"] * 3 + ["b"] * 3


def two_nodes_of_four() -> Problem:
    """Slow links between the nodes."""
    inside = Link(latency_s=0.0, bandwidth_bytes_per_s=100.0)
    problem = chain_problem([1, 1, 1], [1, 1, 1], num_micro_batches=2, output_bytes=[8, 8, 0])
    nodes = tuple(
        Node(
            name=name,
            devices=(DeviceGroup(name=name, type="class0", count=4),),
            link=inside,
        )
        for name in "ab"
    )
    slow = Link(latency_s=1.0, bandwidth_bytes_per_s=1.0)
    return replace(problem, cluster=problem.cluster.changed(nodes=nodes, inter_node_link=slow))


def test_groups_get_devices_of_one_node_and_what_comes_before_leaves_room_for_them() -> None:
    problem = two_nodes_of_four()
    placement = (
        PlacedStage(0, 0, 0, replicas=2),
        PlacedStage(1, 1, 0, replicas=1, degree=4, recompute=True),
        PlacedStage(2, 2, 0, replicas=1, degree=2),
    )
    plan = bind(problem, placement, planner="test", seed=0)
    groups = [sorted(stage.devices) for stage in plan.stages]
    nodes = [{name[0] for name in group} for group in groups]
    assert [len(group) for group in groups] == [1, 1, 4, 2]
    assert [len(found) for found in nodes] == [1, 1, 1, 1]
    assert nodes[0] == nodes[1] == nodes[3] != nodes[2]
    assert [stage.recompute_layers for stage in plan.stages] == [(), (), (1,), ()]
    assert plan.predicted_step_time_s == estimate(problem, plan).step_time_s


def test_replicas_of_a_group_shard_their_state_where_the_placement_says_so() -> None:
    problem = two_nodes_of_four()
    placement = (
        PlacedStage(0, 1, 0, replicas=2, degree=2, shards_state=True),
        PlacedStage(2, 2, 0, replicas=1, degree=4, shards_state=True),
    )
    plan = bind(problem, placement, planner="test", seed=0)
    assert plan.sharded_state == (LayerRange(first_layer=0, last_layer=1),)
    assert [stage.degree for stage in plan.stages] == [2, 2, 4]
    assert len(plan.devices) == 8


def test_groups_that_no_node_has_room_for_are_refused() -> None:
    problem = two_nodes_of_four()
    with pytest.raises(InfeasibleError, match="than its nodes have room for"):
        bind(problem, (PlacedStage(0, 2, 0, degree=5),), planner="test", seed=0)
    pair = PlacedStage(0, 1, 0, replicas=2, degree=3), PlacedStage(2, 2, 0, degree=3)
    with pytest.raises(InfeasibleError, match="asks for 9 devices of class0; there are 8"):
        bind(problem, pair, planner="test", seed=0)


def test_more_devices_than_there_are_is_refused() -> None:
    problem = chain_problem([1, 1], [1, 1], counts=(2,))
    with pytest.raises(InfeasibleError, match="asks for 3 devices of class0; there are 2"):
        bind(problem, (PlacedStage(0, 0, 0, 2), PlacedStage(1, 1, 0)), planner="test", seed=0)
