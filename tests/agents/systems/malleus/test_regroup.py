"""Regrouping beside keeping the groups, the equal plan, and all groupings that there are."""

from __future__ import annotations

import math
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from heterps_agents.systems.malleus.groups import RatioPace
from heterps_agents.systems.malleus.memory import StageMemory
from heterps_agents.systems.malleus.plans import StragglerPlan, UniformPlan, uniform_seconds
from heterps_agents.systems.malleus.straggler import keep_groups, regroup
from heterps_configs.errors import InfeasibleError
from tests.agents.systems.malleus.brute_force import least_seconds

RATIOS = st.sampled_from([1.0, 1.0, 1.1, 1.3, 1.5, 2.0, 3.0, 5.0, 40.0])
# Seconds of groups of n, n/2, n/4 and n/8 devices over those of n: ideal, measured by Malleus, and
# where groups lose much.
FACTORS = st.sampled_from([(1.0, 2.0, 4.0, 8.0), (1.0, 1.9, 3.66, 7.22), (1.0, 1.2, 1.3, 1.4)])


class Case(NamedTuple):
    """A cluster with stragglers."""

    nodes: list[list[str]]
    ratios: dict[str, float]
    uniform: UniformPlan
    memory: StageMemory | None
    pace: RatioPace

    def regrouped(self) -> StragglerPlan | None:
        try:
            return regroup(self.pace, self.nodes, self.uniform, self.memory)
        except InfeasibleError:
            return None

    def equal_fits(self) -> bool:
        stages, layers = self.uniform.num_stages, self.uniform.num_layers
        return self.memory is None or all(
            self.memory.most_layers(stage, stages, 1.0) >= -(-layers // stages)
            for stage in range(stages)
        )


@st.composite
def cases(draw: st.DrawFn, most_devices: int, most_layers: int) -> Case:
    """Nodes that hold the groups of an equal plan, and some devices more."""
    size = draw(st.sampled_from([1, 2, 4]))
    groups = draw(st.integers(1, max(1, most_devices // size)))
    num_pipelines = draw(st.sampled_from([n for n in (1, 2, 3) if groups % n == 0]))
    num_stages = groups // num_pipelines
    first = draw(st.integers(1, groups))
    more = draw(st.integers(0, max(0, min(1, most_devices - groups * size))))
    counts = [count for count in (first * size + more, (groups - first) * size) if count]
    names = iter(f"d{index}" for index in range(sum(counts)))
    nodes = [[next(names) for _ in range(count)] for count in counts]
    ratios = {name: draw(RATIOS) for node in nodes for name in node}
    num_layers = draw(st.integers(num_stages, most_layers))
    micro_batches = num_pipelines * num_stages + draw(st.integers(0, 3))
    uniform = UniformPlan(num_pipelines, num_stages, size, num_layers, micro_batches)
    limit = draw(st.floats(0.3, 2.5)) * num_layers
    in_flight = tuple(1.0 + 0.5 * left for left in range(num_stages, 0, -1))
    memory = draw(st.sampled_from([None, StageMemory(in_flight, 0.3, 0.1, limit)]))
    return Case(nodes, ratios, uniform, memory, RatioPace(ratios, size, draw(FACTORS)))


@given(cases(most_devices=16, most_layers=32))
@settings(max_examples=150, deadline=None)
def test_regrouping_never_loses_to_keeping_the_groups_nor_that_to_the_equal_plan(
    case: Case,
) -> None:
    regrouped = case.regrouped()
    kept = keep_groups(case.pace, case.nodes, case.uniform, case.memory)
    if case.equal_fits():
        assert kept is not None
    if kept is not None:
        assert regrouped is not None
        assert regrouped.seconds <= kept.seconds
        if case.equal_fits():
            assert kept.seconds <= uniform_seconds(case.ratios, case.uniform) * (1 + 1e-12)


@given(cases(most_devices=5, most_layers=4))
@settings(max_examples=60, deadline=None)
def test_no_other_grouping_of_a_small_cluster_is_quicker(case: Case) -> None:
    regrouped = case.regrouped()
    kept = keep_groups(case.pace, case.nodes, case.uniform, case.memory)
    least = least_seconds(case.pace, case.nodes, case.uniform, case.memory)
    if kept is not None:
        least = min(least, kept.seconds)
    assert (regrouped is None) == math.isinf(least)
    if regrouped is not None:
        assert regrouped.seconds == pytest.approx(least)


@given(cases(most_devices=16, most_layers=32))
@settings(max_examples=60, deadline=None)
def test_every_layer_and_micro_batch_is_dealt_once_and_groups_stay_on_their_nodes(
    case: Case,
) -> None:
    found = case.regrouped()
    if found is None:
        return
    node_of = {name: index for index, node in enumerate(case.nodes) for name in node}
    used = [n for own in found.pipelines for group in own.groups for n in group.devices]
    assert len(used) == len(set(used))
    assert sum(own.micro_batches for own in found.pipelines) == case.uniform.num_micro_batches
    for own in found.pipelines:
        assert sum(own.layers) == case.uniform.num_layers
        for group in own.groups:
            assert len({node_of[name] for name in group.devices}) == 1
    working = {name for own in found.pipelines for name in own.devices}
    assert working.isdisjoint(found.suspended)
    assert working.union(found.suspended) == node_of.keys()


def test_what_smaller_groups_cost_decides_whether_a_straggler_is_split_off() -> None:
    """A pair with a device that takes 1.3 times as long; what one device takes over a pair."""
    nodes, uniform = [["a", "b", "c", "d"]], UniformPlan(1, 3, 2, 60, 8)
    for factor, sizes in (((1.0, 1.2), [1, 1, 1]), ((1.0, 1.9), [1, 1, 2]), ((1.0, 2.6), [2, 2])):
        pace = RatioPace({"d": 1.3}, 2, factor)
        (pipeline,) = regroup(pace, nodes, uniform).pipelines
        assert [len(group.devices) for group in pipeline.groups] == sizes


def test_a_hopeless_device_of_a_group_of_four_is_suspended_and_two_work_on() -> None:
    pace = RatioPace({"b": 50.0}, 4, (1.0, 1.9, 3.66))
    found = regroup(pace, [["a", "b", "c", "d"]], UniformPlan(1, 1, 4, 8, 4))
    assert [group.devices for group in found.pipelines[0].groups] == [("a", "c")]
    assert found.suspended == ("b", "d")
