"""Equal devices: a new plan is on those that hold most of what it needs."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_configs.documents.cluster import Cluster, HostTimes, Link, LinkOverride
from heterps_configs.documents.plan import Plan
from heterps_envs.closed_form.fewer_devices import without_devices
from heterps_envs.closed_form.placement import PlacedStage
from heterps_envs.online.equal_devices import keep_in_place
from heterps_envs.online.state_moves import CHUNK_BYTES, moved_bytes, state_moves
from heterps_envs.simulator.binding import bind
from heterps_envs.simulator.simulate import estimate
from tests.envs.online.test_state_moves import chain, four_layers, on_nodes
from tests.envs.small_problems import any_plans, plan_of


def test_of_equal_devices_those_form_a_group_that_hold_most_of_their_new_parts() -> None:
    problem = four_layers([8 * CHUNK_BYTES] * 4)
    alone = plan_of(problem, {"a": (0, 3, "d0-0")}, {("a",): [0, 1, 2]})
    (stage,) = alone.stages
    old, new = (
        alone.changed(stages=(stage.changed(devices=devices),))
        for devices in (("d0-0", "d0-1"), ("d0-1", "d0-0"))
    )
    kept = keep_in_place(problem, old, new)
    assert kept.stages[0].devices == ("d0-0", "d0-1")
    assert state_moves(problem, old, kept) == []


@given(st.data(), st.sampled_from(["one node", "three nodes"]))
@settings(max_examples=40, deadline=None)
def test_equal_devices_are_exchanged_for_the_fewest_bytes_at_the_same_step_time(
    data: st.DataObject, shape: str
) -> None:
    problem = four_layers() if shape == "one node" else on_nodes(four_layers())
    old, new = data.draw(any_plans(problem)), data.draw(any_plans(problem))
    kept = keep_in_place(problem, old, new)
    assert estimate(problem, kept).step_time_s == estimate(problem, new).step_time_s
    assert kept.changed(stages=new.stages) == new
    fewest = min(
        moved_bytes(state_moves(problem, old, renamed(new, dict(zip("abcd", order, strict=False)))))
        for first in permutations(("d0-0", "d0-1"))
        for second in permutations(("d1-0", "d1-1"))
        for order in [(*first, *second)]
    )
    assert moved_bytes(state_moves(problem, old, kept)) == fewest


def renamed(plan: Plan, order: dict[str, str]) -> Plan:
    new_names = dict(zip(("d0-0", "d0-1", "d1-0", "d1-1"), order.values(), strict=True))
    return plan.changed(
        stages=tuple(stage.changed(devices=(new_names[stage.devices[0]],)) for stage in plan.stages)
    )


def test_an_idle_equal_device_that_holds_a_layer_gets_it_back() -> None:
    problem = four_layers(counts=(4, 1))
    old = bind(problem, [PlacedStage(0, 1, 0), PlacedStage(2, 3, 0)], planner="test", seed=0)
    new = chain(problem, "d0-2", "d0-2", "d0-3", "d0-3")
    kept = keep_in_place(problem, old, new)
    assert kept.devices == old.devices
    assert state_moves(problem, old, kept) == []
    left = without_devices(problem, [old.devices[0]])
    assert old.devices[0] not in keep_in_place(left, old, new).devices


@pytest.mark.parametrize("difference", ["link", "host", "direction"])
def test_devices_that_differ_in_their_links_or_hosts_are_not_exchanged(difference: str) -> None:
    problem = on_nodes(four_layers())
    nodes = list(problem.cluster.nodes)
    changes: dict[str, object] = {}
    if difference == "host":
        nodes[0] = nodes[0].changed(host=HostTimes(action_s=1e-3))
    if difference == "link":
        fast = Link(latency_s=0.0, bandwidth_bytes_per_s=1e6)
        changes["link_overrides"] = (LinkOverride(between=("a", "c"), link=fast),)
    if difference == "direction":
        reverse = Link(latency_s=0.0, bandwidth_bytes_per_s=1e6)
        nodes[2] = nodes[2].changed(reverse_link=reverse)
    fields = {name: getattr(problem.cluster, name) for name in Cluster.model_fields}
    cluster = Cluster.model_validate({**fields, "nodes": tuple(nodes), **changes})
    changed = replace(problem, cluster=cluster)
    first = ("d1-0", "d1-1") if difference == "direction" else ("d0-0", "d0-1")
    old = chain(problem, first[0], first[0], first[1], first[1])
    new = chain(problem, first[1], first[1], first[0], first[0])
    assert keep_in_place(problem, old, new).devices == old.devices
    assert keep_in_place(changed, old, new) is new
