"""Moves between plans: nothing moves in vain, sources share the work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.documents.cluster import (
    Cluster,
    DeviceGroup,
    Link,
    Node,
)
from heterps_configs.documents.plan import LayerRange, Plan
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.online.equal_devices import keep_in_place
from heterps_envs.online.state_moves import (
    CHUNK_BYTES,
    Move,
    missing_layers,
    move_s,
    pays_back,
    state_moves,
)
from heterps_envs.problem import Problem
from tests.envs.small_problems import any_plans, chain_problem, device_type, plan_of

SLOW = Link(latency_s=0.5, bandwidth_bytes_per_s=100.0)
PARAMETERS = (1, 2, 5, 3)


def four_layers(parameters: Sequence[int] = PARAMETERS, **changes: object) -> Problem:
    """Two equal and two other devices on one node; four bytes of state a parameter."""
    settings: dict[str, object] = {
        "num_micro_batches": 3,
        "speeds": (1.0, 2.0),
        "counts": (2, 2),
        "parameters": parameters,
        "output_bytes": [7.0, 5.0, 3.0, 0.0],
        "link": SLOW,
        **changes,
    }
    return chain_problem([1, 2, 3, 4], [2, 3, 4, 5], **settings)  # type: ignore[arg-type]


def on_nodes(problem: Problem) -> Problem:
    """Class 0 alone on two equal nodes, class 1 together on a third, and one far link."""
    nodes = (
        Node(name="a", devices=(DeviceGroup(name="d0-0", type="class0"),), link=SLOW),
        Node(name="b", devices=(DeviceGroup(name="d0-1", type="class0"),), link=SLOW),
        Node(name="c", devices=(DeviceGroup(name="d1", type="class1", count=2),), link=SLOW),
    )
    cluster = Cluster(
        name="nodes",
        device_types=(device_type("class0"), device_type("class1")),
        nodes=nodes,
        inter_node_link=Link(latency_s=0.1, bandwidth_bytes_per_s=10.0),
    )
    return replace(problem, cluster=cluster)


def chain(problem: Problem, *devices: str) -> Plan:
    """A layer for each device."""
    stages = {f"s{i}": (i, i, name) for i, name in enumerate(devices)}
    every = range(problem.job.num_micro_batches)
    return plan_of(problem, stages, {tuple(stages): every})


def layers_of(plan: Plan, device: str) -> set[int]:
    return {layer for stage in plan.stages if device in stage.devices for layer in stage.layers}


@given(st.data(), st.sampled_from(["one node", "three nodes"]))
@settings(max_examples=60, deadline=None)
def test_each_missing_state_is_sent_once_from_a_device_that_holds_it(
    data: st.DataObject, shape: str
) -> None:
    problem = four_layers() if shape == "one node" else on_nodes(four_layers())
    old, new = data.draw(any_plans(problem)), data.draw(any_plans(problem))
    lost = data.draw(st.sets(st.sampled_from(old.devices), max_size=2))
    moves = state_moves(problem, old, new, lost)
    arrived: Counter[tuple[int, str]] = Counter()
    for move in moves:
        arrived[move.layer, move.destination] += move.num_bytes
        if move.source is None:
            assert not any(move.layer in layers_of(old, d) for d in old.devices if d not in lost)
        else:
            assert move.source not in lost
            assert move.layer in layers_of(old, move.source)
    survivors = [name for name in old.devices if name not in lost]
    missing = {
        (layer, name): 4 * PARAMETERS[layer]
        for name in new.devices
        for layer in layers_of(new, name)
        if name not in survivors or layer not in layers_of(old, name)
    }
    assert arrived == missing


@given(st.data())
@settings(max_examples=30, deadline=None)
def test_nothing_moves_where_the_plan_stays(data: st.DataObject) -> None:
    problem = four_layers()
    plan = data.draw(any_plans(problem))
    assert state_moves(problem, plan, plan) == []
    assert move_s(problem, [], overhead_s=0.25) == 0.25
    assert keep_in_place(problem, plan, plan) is plan


def test_optimizer_state_master_weights_and_buffers_travel_and_gradients_do_not() -> None:
    problem = four_layers()
    job = problem.job.changed(optimizer="adamw", dtype="bfloat16")
    layers = list(problem.profile.layers)
    layers[1] = layers[1].changed(buffer_bytes=40)
    profile = problem.profile.changed(layers=tuple(layers))
    problem = replace(problem, job=job, profile=profile)
    old = chain(problem, "d0-0", "d0-1", "d1-0", "d1-1")
    new = chain(problem, "d0-0", "d0-0", "d1-0", "d1-1")
    # Two parameters: weights of 2 bytes, two moments and a master copy of 4 each.
    assert state_moves(problem, old, new) == [Move(1, "d0-1", "d0-0", 2 * (2 + 8 + 4) + 40)]


def test_a_shared_parameter_moves_only_to_devices_that_have_none_of_its_layers() -> None:
    problem = four_layers(parameters=(5, 2, 5, 7), tied_to={3: 0})
    problem = replace(
        problem,
        profile=problem.profile.changed(
            layers=tuple(
                layer.changed(tied_parameters=5, num_parameters=6) if layer.tied_to else layer
                for layer in problem.profile.layers
            )
        ),
    )
    old = chain(problem, "d0-0", "d0-1", "d1-0", "d1-1")
    both = chain(problem, "d0-0", "d0-1", "d1-0", "d0-0")
    assert state_moves(problem, old, both) == [Move(3, "d1-1", "d0-0", 4)]
    elsewhere = chain(problem, "d0-0", "d0-1", "d0-1", "d0-1")
    moves = {(m.layer, m.destination): m.num_bytes for m in state_moves(problem, old, elsewhere)}
    assert moves == {(0, "d0-1"): 20, (2, "d0-1"): 20, (3, "d0-1"): 4}


def test_replicas_share_the_sending_of_a_large_layer() -> None:
    problem = four_layers(parameters=(0, 4 * CHUNK_BYTES, 0, 0))
    old = plan_of(
        problem,
        {"a": (0, 3, "d0-0"), "b": (0, 3, "d0-1")},
        {("a",): [0, 1], ("b",): [2]},
    )
    new = plan_of(problem, {"a": (0, 3, "d1-0")}, {("a",): [0, 1, 2]})
    moves = state_moves(problem, old, new)
    assert {move.source: move.num_bytes for move in moves} == {
        "d0-0": 8 * CHUNK_BYTES,
        "d0-1": 8 * CHUNK_BYTES,
    }
    assert move_s(problem, moves, overhead_s=2.0) == pytest.approx(2.5 + 8 * CHUNK_BYTES / 100)
    alone = state_moves(problem, old, new, lost=["d0-0"])
    assert [(move.source, move.num_bytes) for move in alone] == [("d0-1", 16 * CHUNK_BYTES)]


def test_of_a_group_each_device_has_its_share_and_gets_what_it_lacks() -> None:
    problem = four_layers([8 * CHUNK_BYTES] * 4)
    alone = plan_of(problem, {"a": (0, 3, "d0-0")}, {("a",): [0, 1, 2]})
    (stage,) = alone.stages

    def on(*devices: str, shares: tuple[float, ...] = ()) -> Plan:
        return alone.changed(stages=(stage.changed(devices=devices, tensor_shares=shares),))

    def moved(old: Plan, new: Plan, *lost: str) -> dict[tuple[str | None, str], int]:
        found: Counter[tuple[str | None, str]] = Counter()
        for move in state_moves(problem, old, new, lost):
            found[move.source, move.destination] += move.num_bytes
        return dict(found)

    whole = sum(moved(alone, on("d1-0")).values())
    group = on("d0-0", "d0-1")
    assert moved(alone, group) == {("d0-0", "d0-1"): whole // 2}
    assert moved(group, alone) == {("d0-1", "d0-0"): whole // 2}
    assert moved(group, on("d0-0", "d0-1", shares=(0.75, 0.25))) == {("d0-1", "d0-0"): whole // 4}
    assert moved(group, alone, "d0-1") == {(None, "d0-0"): whole // 2}
    assert missing_layers(group, ["d0-1"]) == (0, 1, 2, 3)
    assert missing_layers(group, ["d1-0"]) == ()
    twice = plan_of(
        problem, {"a": (0, 3, "d0-0"), "b": (0, 3, "d1-0")}, {("a",): [0, 1], ("b",): [2]}
    )
    assert missing_layers(twice, ["d0-0"]) == ()
    divided = twice.changed(sharded_state=(LayerRange(first_layer=1, last_layer=2),))
    assert missing_layers(divided, ["d0-0"]) == (1, 2)


def test_devices_of_a_node_share_its_link_to_another_node_and_not_the_links_inside() -> None:
    problem = on_nodes(four_layers())
    moves = [Move(0, "d1-0", "d0-0", 20), Move(1, "d1-1", "d0-0", 30), Move(2, "d1-0", "d1-1", 300)]
    assert move_s(problem, moves[:2], overhead_s=0.0) == pytest.approx(5.1)
    assert move_s(problem, moves[1:], overhead_s=0.0) == pytest.approx(3.5)
    back = [Move(0, "d0-0", "d1-0", 20), Move(1, "d1-1", "d0-0", 30)]
    assert move_s(problem, back, overhead_s=0.0) == pytest.approx(3.1)


def test_what_nobody_holds_comes_from_storage_which_all_share() -> None:
    problem = four_layers()
    old = chain(problem, "d0-0", "d0-1", "d1-0", "d1-1")
    new = chain(problem, "d0-0", "d0-0", "d1-0", "d1-0")
    moves = state_moves(problem, old, new, lost=["d0-1", "d1-1"])
    assert [(move.layer, move.source) for move in moves] == [(3, None), (1, None)]
    assert move_s(problem, moves, overhead_s=0.0, storage_bytes_per_s=10.0) == pytest.approx(2.0)
    left = without_devices(problem, ["d0-1", "d1-1"])
    assert state_moves(left, old, new) == moves


def test_a_move_pays_within_the_horizon_and_beyond_the_spread_of_its_gain() -> None:
    assert pays_back(0.1, 20, 1.0)
    assert not pays_back(0.1, 10, 1.0)
    assert not pays_back(0.1, 20, 1.0, 10)
    assert pays_back(0.1, 20, 1.0, 50)
    assert not pays_back(0.1, 20, 1.0, gain_spread_s=0.06)
    assert not pays_back(-0.1, 20, 0.0)
